"""Items of an experiment on a Ray cluster: the same files as in process, with the caller's model or none."""

import asyncio
import sys

import pytest

import sonde
from sonde import experiments
from sonde.core import errors
from sonde.core import settings as core_settings
from sonde.store import schemas

ray = pytest.importorskip("ray", reason='needs the extra: pip install "sonde[ray]"')

ITEM = schemas.register("item of a test", schemas.Data)


class TokensSettings(core_settings.Settings):
    """How many items, and which fails."""

    items: int = 5
    fails: int = -1
    threads: int = 1


async def work(context, item):
    """The sum of the model's logits of a token, in a coroutine."""
    if item["token"] == context.settings.fails:
        raise errors.AnalysisError(f"token {item['token']} cannot be had")
    await asyncio.sleep(0)
    model = context.experiment.model
    return {"token": item["token"], "sum": float(model.run_with_hooks(model.to_tokens([item["token"]])).double().sum())}


class Tokens(experiments.Experiment[TokensSettings]):
    """A sum for each token."""

    kind, verb, results_kind, settings_type = "tokens", ("tokens",), ITEM, TokensSettings
    stages = (
        experiments.Items(
            "sums", ITEM, lambda context: [{"token": at} for at in range(context.settings.items)], work, ITEM,
            lambda context, made: {"sums": [one["sum"] for one in made]},
        ),
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


def files(found):
    return {path.name: path.read_bytes() for path in sorted((found.folder / "stages").rglob("*.json"))} | {
        "times.json": b""
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_items_give_the_same_files_on_a_cluster_and_go_on_where_one_failed(tmp_path):
    with sonde.load("tiny-llama") as model:
        here = experiments.run(Tokens(model), TokensSettings(), run="it", runs_dir=tmp_path / "here")
        there = experiments.run(Tokens(model), TokensSettings(), run="it", runs_dir=tmp_path / "there", engine="ray")
        assert files(there) == files(here)
        assert len(set(here.results["sums"]["sums"])) == 5
        with pytest.raises(errors.AnalysisError, match="token 3 cannot be had"):
            experiments.run(Tokens(model), TokensSettings(fails=3), run="it", runs_dir=tmp_path / "fails", engine="ray")
    assert sonde.store.Run.open(tmp_path / "fails" / "it").status == "failed"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_model_that_workers_cannot_load_as_it_is_held_here_is_refused(tmp_path):
    with sonde.load("tiny-llama") as model:
        model.hf.lm_head.weight.data[0, 0] += 1
        with pytest.raises(errors.ModelError, match="its weights are others"):
            experiments.run(Tokens(model), TokensSettings(), runs_dir=tmp_path, engine="ray")
