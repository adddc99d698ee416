"""Does a model track variables? Programs with labels, prompts, parsers, experiments, and what tokens stand for.

    from sonde.programs import ExperimentRunner, generators, prompts, quick_experiment

    config = quick_experiment(
        name="binding", prompt_template=prompts.VARIABLE_BINDING, models=["smollm2-135m-instruct"],
        program_generator=generators.make_variable_binding_program, num_seqs=10, seq_lens=[2, 3, 4, 5],
    )
    runner = ExperimentRunner()
    result = runner.run(config)
    runner.plot("binding")

Through which tokens and layers the value reaches the query:

    from sonde.programs import CausalExperimentRunner

    result = CausalExperimentRunner(template=prompts.VARIABLE_BINDING).run_intervention_experiment(
        model_id="./my-model", programs=programs, intervention_type="residual_stream"
    )
    result.traces["residual_stream"].by_role("success")

A program of length n has n assignments and then a query line; hops count the assignments from the query's down to the
constant, the constant's included.
"""

from sonde.programs import generators, heuristics, parsers, prompts
from sonde.programs.causal import CausalTracer
from sonde.programs.causal_runner import CausalExperimentRunner, InterventionResult, run_causal_tracing_experiment
from sonde.programs.causal_settings import TraceSettings
from sonde.programs.causal_traces import Trace
from sonde.programs.chains import VariableChain
from sonde.programs.counterfactuals import CounterfactualGenerator, Pair
from sonde.programs.experiments import ExperimentConfig, quick_experiment
from sonde.programs.outcomes import ExperimentResult
from sonde.programs.runner import ExperimentRunner
from sonde.programs.seeds import RobustSeed, Seeds, SeedsSettings, find_robust_seeds
from sonde.programs.tokens import TokenAnalyzer, TokenRoles

__all__ = [
    "generators", "prompts", "parsers", "heuristics",
    "ExperimentConfig", "ExperimentResult", "ExperimentRunner", "quick_experiment",
    "TokenAnalyzer", "TokenRoles", "VariableChain", "CounterfactualGenerator", "Pair",
    "CausalTracer", "CausalExperimentRunner", "InterventionResult", "Trace", "TraceSettings",
    "run_causal_tracing_experiment",
    "RobustSeed", "Seeds", "SeedsSettings", "find_robust_seeds",
]  # fmt: skip
