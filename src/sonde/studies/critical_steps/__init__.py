"""Which step of an episode decides how the rest goes, and which layer makes it; see `study`.

1. Play episodes, or take those of a run.
2. Screen (`screening`): take away what one layer adds at one step, and see how far the model's distribution over the
   recorded responses moves. Cheap, because nothing is generated; says where in depth a step is made.
3. Roll out (`rollouts`): for every step the layer that stands out, and as many random cells, play on from the recorded
   state with and without the ablation, with the same random numbers. Only this can say that a step matters *later*.
4. Test (`results`): paired by episode, sign-flip tests, Holm-corrected over all cells.
5. Heads (`screening` again): which heads of the chosen cells carry it.

Cost: screening is layers x steps x episodes forward passes over a few responses; rolling out is generation, and by far
the larger part. Everything finished is on disk, and nothing of it is computed twice.
"""
