"""What interventions mean, written down once more: plain transformers, every step encoded from scratch.

Nothing of Sonde runs here but its specs, which are read as data. A network of its own carries forward hooks of its own,
and an attention function of its own that transformers is told of; there is no cache, no batch, no padding. Interventions
are applied position by position as `docs/interventions.md` says:

1. `positions` are places in the whole conversation; negative ones count back from the end of the step's prompt.
2. `steps`, `phase` and `scope` choose among them; what is chosen under `after="persist"` stays chosen in later steps, for as
   long as the tokens are there.
3. The conversation of the step is encoded in one forward pass with the interventions at those places, in their order.
4. What a path's sender would have written to the stream, less what it wrote, is added to what its receivers read, and to
   nothing else.
"""

import dataclasses
import fnmatch
import functools
import hashlib
import math

import torch
import transformers
from torch.nn import functional as F
from transformers import masking_utils

KERNEL = "reencoding"
NEVER = ("blocks.*.attn.hook_attn_scores", "blocks.*.attn.hook_pattern")


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """Where an architecture does what. Paths of blocks and below are relative to the one above."""

    embed: str = "model.embed_tokens"
    pos: str | None = None
    blocks: str = "model.layers"
    final: str = "model.norm"
    unembed: str = "lm_head"
    attn: str = "self_attn"
    split: tuple[str, str, str] | None = ("q_proj", "k_proj", "v_proj")
    fused: str | None = None
    by_head: bool = False
    o: str = "o_proj"
    adds: str = "self_attn"
    mlp_adds: str = "mlp"
    gate: str = "mlp.gate_proj"
    linear: str | None = "mlp.up_proj"
    down: str = "mlp.down_proj"
    parallel: bool = False
    attn_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"


GPT2 = Anatomy(
    "transformer.wte", "transformer.wpe", "transformer.h", "transformer.ln_f", attn="attn", split=None, fused="c_attn",
    o="c_proj", adds="attn", gate="mlp.c_fc", linear=None, down="mlp.c_proj", attn_norm="ln_1", mlp_norm="ln_2",
)  # fmt: skip
NEOX = Anatomy(
    "gpt_neox.embed_in", None, "gpt_neox.layers", "gpt_neox.final_layer_norm", attn="attention", split=None,
    fused="query_key_value", by_head=True, o="dense", adds="attention", gate="mlp.dense_h_to_4h", linear=None,
    down="mlp.dense_4h_to_h",
)  # fmt: skip
GEMMA = Anatomy(
    adds="post_attention_layernorm", mlp_adds="post_feedforward_layernorm", mlp_norm="pre_feedforward_layernorm"
)  # fmt: skip
STARCODER = Anatomy(gate="mlp.c_fc", linear=None, down="mlp.c_proj")
PHI = Anatomy(
    final="model.final_layernorm", o="dense", gate="mlp.fc1", linear=None, down="mlp.fc2", parallel=True,
    mlp_norm="input_layernorm",
)  # fmt: skip


class Network:
    """A network with values that can be read and changed by name, one sequence at a time."""

    def __init__(self, network, anatomy):
        self.network, self.anatomy = network.eval(), anatomy
        config = network.config
        config._attn_implementation = KERNEL
        self.heads, self.width = config.num_attention_heads, config.hidden_size
        self.d_head = getattr(config, "head_dim", None) or self.width // self.heads
        self.blocks = list(network.get_submodule(anatomy.blocks))
        self.names, self.edits, self.wanted, self.seen = [], {}, frozenset(), {}
        self.order, self.asleep, self.calls, self.incoming = None, False, {}, {}
        self.paths, self.sent = [], {}
        self._hook(network)

    @torch.no_grad()
    def __call__(self, ids, edits, wanted=(), order=None, paths=()):
        """Logits, `pos vocab`, and the values wanted. `edits`: by name, functions of a value without batch axis."""
        self.edits, self.wanted, self.seen = edits, frozenset(wanted), {}
        self.order, self.asleep = order, order is not None
        self.paths, self.sent = list(paths), {}
        logits = self.network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits, self.seen

    def _visit(self, name, value):
        if self.asleep and name.startswith("blocks."):
            return value
        for change in self.edits.get(name, ()):
            value = change(value)
        if name in self.wanted:
            self.seen[name] = value.clone()
        for index, path in enumerate(self.paths):
            if path.spec.site == name:
                self.sent[index] = self._written(name, path(value) - value)
        return value

    def _written(self, name, change):
        """What a change of a sender's value adds to the stream, but for a norm after attention."""
        if name.endswith("hook_z"):
            weight = self._output_weight(self.blocks[int(name.split(".")[1])])
            return torch.cat(list(change.unbind(dim=1)), dim=-1) @ weight
        return change.sum(dim=1) if name.endswith("hook_result") else change

    def _output_weight(self, block):
        module = block.get_submodule(self.anatomy.attn).get_submodule(self.anatomy.o)
        return module.weight.T if isinstance(module, torch.nn.Linear) else module.weight  # GPT-2's is transposed

    def _read(self, name, head=None):
        """What the paths to a receiver, or to one head of it, add to what it reads; None if nothing."""
        found = [
            self.sent[index]
            for index, path in enumerate(self.paths)
            if index in self.sent
            and name in path.spec.receivers
            and (head is None or path.spec.receiver_heads is None or head in path.spec.receiver_heads)
        ]
        return sum(found) if found else None

    def _projected(self, name, layer, module, value, take):
        """Queries, keys or values, by head, of those heads that read something else."""
        value = value.clone()
        for head in range(value.shape[1]):
            added = self._read(name, head)
            if added is not None:
                norm = self.blocks[layer].get_submodule(self.anatomy.attn_norm)
                value[:, head] = take(module.forward(norm.forward(self.incoming[layer] + added)[None]))[:, head]
        return value

    def _adds_before(self, name, module):
        """A norm that reads the stream and what paths add to it."""

        def visit(module, args):
            added = self._read(name)
            return None if added is None else (args[0] + added, *args[1:])

        module.register_forward_pre_hook(visit)

    def _hook(self, network):
        at = self.anatomy
        self._on_output(network.get_submodule(at.embed), "hook_embed")
        if at.pos:
            self._on_output(network.get_submodule(at.pos), "hook_pos_embed")
        for layer, block in enumerate(self.blocks):
            self._hook_block(f"blocks.{layer}.", layer, block)
        self.blocks[-1].register_forward_hook(self._reordered)
        self._adds_before("ln_final.hook_out", network.get_submodule(at.final))
        self._on_output(network.get_submodule(at.final), "ln_final.hook_out")
        self._on_output(network.get_submodule(at.unembed), "unembed.hook_out")

    def _hook_block(self, name, layer, block):
        at, attn = self.anatomy, block.get_submodule(self.anatomy.attn)

        def enter(module, args, kwargs):
            self.calls[layer] = (args, kwargs)
            added = self._read(f"{name}hook_resid_pre")
            stream = args[0][0] if added is None else args[0][0] + added
            self.incoming[layer] = self._visit(f"{name}hook_resid_pre", stream)
            return (self.incoming[layer][None], *args[1:]), kwargs

        block.register_forward_pre_hook(enter, with_kwargs=True)
        self.names.append(f"{name}hook_resid_pre")
        if at.split:
            for letter, path in zip("qkv", at.split, strict=True):
                self._on_output(attn.get_submodule(path), f"{name}attn.hook_{letter}", (-1, self.d_head), layer)
        else:
            attn.get_submodule(at.fused).register_forward_hook(self._fused(name, layer))
            self.names += [f"{name}attn.hook_{letter}" for letter in "qkv"]
        attn._reencoding = (self, f"{name}attn.")
        self.names += [f"{name}attn.hook_attn_scores", f"{name}attn.hook_pattern"]
        self._on_input(attn.get_submodule(at.o), f"{name}attn.hook_z", (-1, self.d_head))
        attn.get_submodule(at.o).register_forward_hook(self._result(f"{name}attn.hook_result"))
        self.names.append(f"{name}attn.hook_result")
        block.get_submodule(at.adds).register_forward_hook(self._added(name, layer))
        self.names += [f"{name}hook_attn_out"] + [f"{name}hook_resid_mid"] * (not at.parallel)
        self._adds_before(f"{name}mlp.hook_pre", block.get_submodule(at.mlp_norm))
        self._on_output(block.get_submodule(at.gate), f"{name}mlp.hook_pre")
        if at.linear:
            self._on_output(block.get_submodule(at.linear), f"{name}mlp.hook_pre_linear")
        self._on_input(block.get_submodule(at.down), f"{name}mlp.hook_post")
        self._on_output(block.get_submodule(at.mlp_adds), f"{name}hook_mlp_out")
        self._on_output(block, f"{name}hook_resid_post")

    def _on_output(self, module, name, shape=None, layer=None):
        self.names.append(name)

        def visit(module, args, output):
            whole = output[0] if isinstance(output, tuple) else output
            value = whole[0] if shape is None else whole[0].unflatten(-1, shape)
            if layer is not None:
                value = self._projected(name, layer, module, value, lambda out: out[0].unflatten(-1, shape))
            new = self._visit(name, value).reshape(whole.shape)
            return (new, *output[1:]) if isinstance(output, tuple) else new

        module.register_forward_hook(visit)

    def _on_input(self, module, name, shape=None):
        self.names.append(name)

        def visit(module, args):
            value = args[0][0] if shape is None else args[0][0].unflatten(-1, shape)
            return (self._visit(name, value).reshape(args[0].shape),)

        module.register_forward_pre_hook(visit)

    def _fused(self, name, layer):
        def split(output):
            if self.anatomy.by_head:
                return output[0].unflatten(-1, (self.heads, 3 * self.d_head)).split(self.d_head, dim=-1)
            return [part.unflatten(-1, (self.heads, -1)) for part in output[0].chunk(3, dim=-1)]

        def visit(module, args, output):
            new = []
            for index, part in enumerate(split(output)):
                site = f"{name}attn.hook_{'qkv'[index]}"
                read = self._projected(site, layer, module, part, lambda out, index=index: split(out)[index])
                new.append(self._visit(site, read))
            axis = -1 if self.anatomy.by_head else -2
            return torch.cat(new, dim=axis).reshape(output.shape)

        return visit

    def _result(self, name):
        def visit(module, args, output):
            weight = self._output_weight(self.blocks[int(name.split(".")[1])])
            parts = torch.stack(
                [
                    args[0][0, :, head * self.d_head : (head + 1) * self.d_head]
                    @ weight[head * self.d_head : (head + 1) * self.d_head]
                    for head in range(self.heads)
                ],
                dim=1,
            )
            new = self._visit(name, parts)
            if new is parts:
                return None
            return (new.sum(dim=1) + (0 if module.bias is None else module.bias))[None]

        return visit

    def _added(self, name, layer):
        """The stream in the middle is what came in and what attention adds: changed by changing what it adds."""

        def visit(module, args, output):
            whole = output[0] if isinstance(output, tuple) else output
            for index, path in enumerate(self.paths):  # heads write through a norm after attention
                if index in self.sent and path.spec.site in (f"{name}attn.hook_z", f"{name}attn.hook_result"):
                    self.sent[index] = self._normed(module, args, self.sent[index])
            value = self._visit(f"{name}hook_attn_out", whole[0])
            if not self.anatomy.parallel:
                middle = self.incoming[layer] + value
                new = self._visit(f"{name}hook_resid_mid", middle)
                value = value if new is middle else new - self.incoming[layer]
            return (value[None], *output[1:]) if isinstance(output, tuple) else value[None]

        return visit

    def _normed(self, module, args, change):
        if self.anatomy.adds == self.anatomy.attn:
            return change
        return module.forward(args[0] + change)[0] - module.forward(args[0])[0]

    def _reordered(self, module, args, output):
        """After all layers ran in their own order, unwatched, they run in the one asked for, with what each was given."""
        if not self.asleep:
            return None
        self.asleep = False
        stream = self.calls[0][0][0]
        for stage in self.order.order:
            layers = stage if isinstance(stage, tuple) else (stage,)
            changes = []
            for layer in layers:
                given, kwargs = self.calls[layer]
                out = self.blocks[layer](stream, *given[1:], **kwargs)
                changes.append((out[0] if isinstance(out, tuple) else out) - stream)
            share = len(layers) if self.order.combine == "mean" else 1
            stream = stream + sum(changes) / share
        return (stream, *output[1:]) if isinstance(output, tuple) else stream


def attend(module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
    """Attention, step by step."""
    network, name = module._reencoding
    shared = query.shape[1] // key.shape[1]
    key, value = (part[0].repeat_interleave(shared, dim=0) for part in (key, value))
    scores = query[0] @ key.mT * (scaling or 1 / math.sqrt(query.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    forbidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    if attention_mask is not None:
        forbidden = forbidden | (attention_mask[0, 0] < 0)
    scores = network._visit(f"{name}hook_attn_scores", scores.masked_fill(forbidden, -torch.inf))
    pattern = network._visit(f"{name}hook_pattern", F.softmax(scores, dim=-1).nan_to_num(0.0))
    return (pattern @ value).transpose(0, 1)[None].contiguous(), None


transformers.AttentionInterface.register(KERNEL, attend)
transformers.AttentionMaskInterface.register(KERNEL, masking_utils.eager_mask)


@dataclasses.dataclass
class Step:
    """One step of a conversation.

    Attributes:
        number: Which.
        tokens: Prompt and answer.
        positions: Place of each in the whole conversation.
        prompt: Length of the prompt.
        known: Up to which place the conversation is as it was when the last step ended.
    """

    number: int
    tokens: list
    positions: list
    prompt: int
    known: int

    @property
    def end(self):
        """The place where the prompt ends."""
        return self.positions[self.prompt - 1] + 1


class Episode:
    """The interventions of one conversation, and what they left behind."""

    def __init__(self, specs):
        self.specs = specs
        self.left = [set() for _ in specs]

    def edits(self, step, names):
        """What is to be done in a step, by Site; the layer order; and the paths."""
        edits, order, paths = {}, None, []
        for index, spec in enumerate(self.specs):
            if spec.name == "LayerOrder":
                order = spec if spec.steps is None or step.number in spec.steps else order
                continue
            stays = {place for place in self.left[index] if place < step.known}
            places = stays | self._chosen(spec, step)
            self.left[index] = places if spec.after == "persist" else set()
            slots = [slot for slot, place in enumerate(step.positions) if place in places]
            if spec.name == "PathPatch":
                paths += [_Change(spec, spec.site, step, slots)] if slots else []
                continue
            for name in names:
                if slots and fnmatch.fnmatchcase(name, spec.site):
                    edits.setdefault(name, []).append(_Change(spec, name, step, slots))
        return edits, order, paths

    @staticmethod
    def _chosen(spec, step):
        if spec.steps is not None and step.number not in spec.steps:
            return set()
        last = step.positions[-1] + 1
        named = range(last) if spec.positions is None else [p if p >= 0 else step.end + p for p in spec.positions]
        inside = {"both": (0, last), "prefill": (0, step.end), "decode": (step.end, last)}[spec.phase]
        start = step.known if spec.scope == "new" else 0
        return {place for place in named if max(inside[0], start) <= place < inside[1]}


@functools.cache
def noise(seed, name, table, shape):
    """Standard normal numbers for 256 positions."""
    digest = hashlib.sha256(f"{seed}:{name}:{table}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return torch.randn(256, *shape, generator=generator)


@dataclasses.dataclass
class _Change:
    """One intervention in one step at one Site."""

    spec: object
    name: str
    step: Step
    slots: list

    def __call__(self, value):
        rows = [slot for slot in self.slots if slot < value.shape[-2 if self.pairs else 0]]
        new = value.clone()
        for slot in rows:
            self._query(new, value, slot) if self.pairs else self._place(new, value, slot)
        return new

    @property
    def pairs(self):
        return any(fnmatch.fnmatchcase(self.name, pattern) for pattern in NEVER)

    def _place(self, new, value, slot):
        heads = slice(None) if self.spec.heads is None else list(self.spec.heads)
        found = self._value(value, slot)
        if found is not None:
            new[slot, heads] = found[heads]

    def _value(self, value, slot):
        spec, place, old = self.spec, self.step.positions[slot], value[slot]
        match spec.name:
            case "Zero":
                return torch.zeros_like(old)
            case "Scale":
                return old * spec.factor
            case "Steer":
                return old + spec.strength * torch.tensor(spec.direction)
            case "Noise":
                return old + spec.std * noise(spec.seed, self.name, place // 256, tuple(old.shape))[place % 256]
            case "Mean" if spec.values is None:
                first = self.step.known if spec.scope == "new" else 0
                prompt = [s for s in range(self.step.prompt) if self.step.positions[s] >= first]
                return value[prompt].mean(dim=0)
            case "Mean" | "Patch" | "PathPatch":
                stored, start = torch.tensor(spec.values), getattr(spec, "start", 0)
                if stored.ndim == old.ndim:
                    return stored
                return stored[place - start] if 0 <= place - start < len(stored) else None
        raise AssertionError(spec)

    def _query(self, new, value, slot):
        """Of what one query sees; what it may not see stays unseen."""
        spec, keys = self.spec, torch.arange(slot + 1)
        for head in range(len(value)) if spec.heads is None else spec.heads:
            seen = keys[value[head, slot, : slot + 1] != -torch.inf]
            if spec.name == "Knockout":
                named = [key for key in seen.tolist() if self.step.positions[key] in spec.keys]
                new[head, slot, named] = -torch.inf if self.name.endswith("scores") else 0.0
            else:
                new[head, slot, seen] *= 0.0 if spec.name == "Zero" else spec.factor
