"""Which parts of a model does a task need? A lab to corrupt a model, measure, take notes, and decide what to try next.

corruptions    what to do to the model, by name: skip:11, reverse:13-16, noise:blocks.5.hook_resid_post@0.5
tasks          what to ask it: prompts and answers
measuring      what changes: answers, likelihoods, loss, KL, with intervals and controls
sweeping       many layer orders on the same text, with what they share computed once
"""
