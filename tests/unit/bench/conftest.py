"""Case 3 by hand: the share of x among the tokens so far, as a model of two nodes that needs no compiler."""

import pytest
import torch

from sonde.bench import batched, high, sampling
from sonde.circuits import graph
from sonde.models import plain

X, BOS = 3, 4


def share_of_x():
    """m0 marks x; a1.h0 takes the mean of the marks over all tokens so far but BOS."""
    shape = batched.Shape(
        n_layers=2, n_heads=1, d_model=8, d_head=1, d_mlp=1, d_vocab=6, d_out=1, n_positions=5, activation="relu"
    )
    hf = plain.PlainForCausalLM(shape.config())
    values = {name: torch.zeros(size) for name, size in shape.parameters.items()}
    values["model.embed_tokens.weight"][:, :6] = torch.eye(6)
    values["model.layers.0.mlp.fc_in.weight"][0, X] = 1
    values["model.layers.0.mlp.fc_out.weight"][6, 0] = 1
    attention = "model.layers.1.self_attn"
    values[f"{attention}.q_proj.bias"][0] = 100
    values[f"{attention}.k_proj.weight"][0, BOS] = -1
    values[f"{attention}.v_proj.weight"][0, 6] = 1
    values[f"{attention}.o_proj.weight"][7, 0] = 1
    values["lm_head.weight"][0, 7] = 1
    hf.load_state_dict(values)
    edges = ["input->m0", "input->a1.h0<k>", "m0->a1.h0<v>", "a1.h0->logits"]
    return high.Compiled(hf, graph.Circuit.of(graph.Graph(2, 1, 1), edges), regression=True)


@pytest.fixture(scope="session")
def case3():
    inputs = sampling.Inputs(symbols=(0, 1, 2, X), bos=BOS, lengths=(3, 4))
    return high.Task("case 3 by hand", share_of_x(), inputs, d_vocab=6, d_out=1, n_positions=5, regression=True)
