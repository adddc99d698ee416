"""Sonde: see inside a language-model agent, step by step.

    import sonde

    with sonde.load("tiny-gpt2") as model:
        logits, cache = model.run_with_cache("hello", "blocks.*.hook_resid_post")

Importing the package loads no torch, reads no file and changes nothing: every name is resolved when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "sonde.core.errors": ["SondeError"],
    "sonde.core.sites": ["Site"],
    "sonde.core.spans": ["Span"],
    "sonde.core.interventions": [
        "Intervention", "Zero", "Mean", "Patch", "Steer", "Scale", "Noise", "Knockout", "PathPatch", "LayerOrder",
    ],
    "sonde.core.records": [
        "Environment", "LLMClient", "LLMRequest", "LLMResponse", "StepType", "TextData", "TimeStep", "Usage",
    ],
    "sonde.models.loading": ["load"],
    "sonde.models.model": ["Model"],
    "sonde.models.adapters": ["as_model"],
    "sonde.capture.capture": ["ActivationCapture", "automatic_activation_capture"],
    "sonde.capture.trajectory": ["TrajectoryActivations"],
    "sonde.capture.manager": ["InterventionManager"],
    "sonde.capture.hooks": [
        "compute_mean_activations",
        "create_attention_knockout_hook",
        "create_mean_ablation_hook",
        "create_path_patching_hook",
        "create_zero_ablation_hook",
    ],
    "sonde.agents.client": ["HookedTransformerLLMClient", "create_hooked_transformer_client_with_chat_template"],
    "sonde.agents.episodes": ["run_and_cache_episode", "run_episode", "run_episode_with_intervention"],
    "sonde.agents.reading": ["check_for_errors", "classify_action", "extract_file_context", "is_success"],
    "sonde.agents.comparing": ["compare_trajectories"],
    "sonde.agents.presets": ["info", "list_presets", "make", "register_preset"],
    "sonde.agents.playing": ["play", "play_async", "resume"],
    "sonde.agents.trajectories": ["EpisodeTrajectory"],
    "sonde.agents.aligning": ["align", "patches_between"],
    "sonde.agents.environment": ["TaskEnvironment"],
    "sonde.agents.twenty_questions.environment": ["TwentyQuestionsEnvironment"],
    "sonde.agents.code.environment": ["CodeEnvironment"],
    "sonde.agents.code.swebench.environment": ["SweBenchEnv"],
    "sonde.agents.code.swebench.instances": ["swebench_verified_tasks"],
    "sonde.agents.mediated": ["MediatedEnvironment"],
    "sonde.agents.openai_client": ["OpenAIClient"],
    "sonde.agents.budgets": ["Budget"],
    "sonde.report.figures": ["visualize_attention"],
}  # fmt: skip
_HOMES = {name: place for place, names in _PLACES.items() for name in names}
__all__ = sorted(_HOMES)  # noqa: PLE0605  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from sonde.agents.aligning import align as align
    from sonde.agents.aligning import patches_between as patches_between
    from sonde.agents.budgets import Budget as Budget
    from sonde.agents.client import HookedTransformerLLMClient as HookedTransformerLLMClient
    from sonde.agents.client import (
        create_hooked_transformer_client_with_chat_template as create_hooked_transformer_client_with_chat_template,
    )
    from sonde.agents.code.environment import CodeEnvironment as CodeEnvironment
    from sonde.agents.code.swebench.environment import SweBenchEnv as SweBenchEnv
    from sonde.agents.code.swebench.instances import swebench_verified_tasks as swebench_verified_tasks
    from sonde.agents.comparing import compare_trajectories as compare_trajectories
    from sonde.agents.environment import TaskEnvironment as TaskEnvironment
    from sonde.agents.episodes import run_and_cache_episode as run_and_cache_episode
    from sonde.agents.episodes import run_episode as run_episode
    from sonde.agents.episodes import run_episode_with_intervention as run_episode_with_intervention
    from sonde.agents.mediated import MediatedEnvironment as MediatedEnvironment
    from sonde.agents.openai_client import OpenAIClient as OpenAIClient
    from sonde.agents.playing import play as play
    from sonde.agents.playing import play_async as play_async
    from sonde.agents.playing import resume as resume
    from sonde.agents.presets import info as info
    from sonde.agents.presets import list_presets as list_presets
    from sonde.agents.presets import make as make
    from sonde.agents.presets import register_preset as register_preset
    from sonde.agents.reading import check_for_errors as check_for_errors
    from sonde.agents.reading import classify_action as classify_action
    from sonde.agents.reading import extract_file_context as extract_file_context
    from sonde.agents.reading import is_success as is_success
    from sonde.agents.trajectories import EpisodeTrajectory as EpisodeTrajectory
    from sonde.agents.twenty_questions.environment import TwentyQuestionsEnvironment as TwentyQuestionsEnvironment
    from sonde.capture.capture import ActivationCapture as ActivationCapture
    from sonde.capture.capture import automatic_activation_capture as automatic_activation_capture
    from sonde.capture.hooks import compute_mean_activations as compute_mean_activations
    from sonde.capture.hooks import create_attention_knockout_hook as create_attention_knockout_hook
    from sonde.capture.hooks import create_mean_ablation_hook as create_mean_ablation_hook
    from sonde.capture.hooks import create_path_patching_hook as create_path_patching_hook
    from sonde.capture.hooks import create_zero_ablation_hook as create_zero_ablation_hook
    from sonde.capture.manager import InterventionManager as InterventionManager
    from sonde.capture.trajectory import TrajectoryActivations as TrajectoryActivations
    from sonde.core.errors import SondeError as SondeError
    from sonde.core.interventions import Intervention as Intervention
    from sonde.core.interventions import Knockout as Knockout
    from sonde.core.interventions import LayerOrder as LayerOrder
    from sonde.core.interventions import Mean as Mean
    from sonde.core.interventions import Noise as Noise
    from sonde.core.interventions import Patch as Patch
    from sonde.core.interventions import PathPatch as PathPatch
    from sonde.core.interventions import Scale as Scale
    from sonde.core.interventions import Steer as Steer
    from sonde.core.interventions import Zero as Zero
    from sonde.core.records import Environment as Environment
    from sonde.core.records import LLMClient as LLMClient
    from sonde.core.records import LLMRequest as LLMRequest
    from sonde.core.records import LLMResponse as LLMResponse
    from sonde.core.records import StepType as StepType
    from sonde.core.records import TextData as TextData
    from sonde.core.records import TimeStep as TimeStep
    from sonde.core.records import Usage as Usage
    from sonde.core.sites import Site as Site
    from sonde.core.spans import Span as Span
    from sonde.models.adapters import as_model as as_model
    from sonde.models.loading import load as load
    from sonde.models.model import Model as Model
    from sonde.report.figures import visualize_attention as visualize_attention


def __getattr__(name: str) -> Any:
    """Resolves a public name."""
    if name not in _HOMES:
        from sonde.models import idioms

        raise idioms.missing("module 'sonde'", name, idioms.PACKAGE)
    from sonde.models import waiting

    with waiting.shown("loading sonde"):
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
