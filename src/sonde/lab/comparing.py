"""How far apart are two models' predictions on the same tokens? Loss, KL, agreement and entropy, token by token.

    judge = comparing.Judge(intact_logits, ids)
    judge.compare(corrupted_logits).kl            # batch pos

| measure           | of a position |
|-------------------|---------------|
| `loss`            | -log of the probability of the next token, in nats; the last position has none |
| `kl`              | KL(intact || corrupted) of the predictions, in nats |
| `agreement`       | whether both find the same token most likely |
| `entropy`         | of the prediction, in nats |

Cost: a pass or two over the logits. The intact model's probabilities are worked out once, and kept.
"""

import dataclasses

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

#: Positions that are worked on at once: probabilities of a whole vocabulary are large.
CHUNK = 256


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Token by token, `batch pos`."""

    loss: Float[np.ndarray, "batch next"]
    kl: Float[np.ndarray, "batch pos"]
    agreement: Float[np.ndarray, "batch pos"]
    entropy: Float[np.ndarray, "batch pos"]


class Judge:
    """The intact model's predictions, to compare others with."""

    def __init__(self, logits: Float[Tensor, "batch pos d_vocab"], ids: Int[Tensor, "batch pos"]) -> None:
        """Works out probabilities."""
        self._ids = ids
        self._logprobs = logits.float().log_softmax(dim=-1)
        self._probs = self._logprobs.exp()
        self._top = logits.argmax(dim=-1)
        self.intact = self.compare(logits)

    def compare(self, logits: Float[Tensor, "batch pos d_vocab"]) -> Comparison:
        """Another model's predictions against the intact one's."""
        parts = [
            self._part(logits[:, at : at + CHUNK], slice(at, at + CHUNK)) for at in range(0, logits.shape[1], CHUNK)
        ]
        loss, kl, agreement, entropy = (
            torch.cat(column, dim=1).double().cpu().numpy() for column in zip(*parts, strict=True)
        )
        return Comparison(loss[:, :-1], kl, agreement, entropy)

    def _part(self, logits: Tensor, where: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        other = logits.float().log_softmax(dim=-1)
        following = torch.roll(self._ids, -1, dims=1)[:, where]
        loss = -other.gather(-1, following[..., None])[..., 0]
        kl = torch.einsum("bpv,bpv->bp", self._probs[:, where], self._logprobs[:, where] - other).clamp(min=0)
        entropy = -torch.einsum("bpv,bpv->bp", other.exp(), other)
        return loss, kl, (logits.argmax(dim=-1) == self._top[:, where]).float(), entropy
