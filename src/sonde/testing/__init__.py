"""What you test your own environments, clients and studies with: a scripted environment, a scripted client, two suites.

    env = testing.ScriptedEnvironment(testing.scripted_tasks()[:1])
    client = testing.ScriptedClient(["Is it alive?"], loop=True)
    await testing.assert_conforms(MyEnvironment, client)
    await testing.assert_sandbox_conforms(choosing.choose("docker"))

Nothing here loads a model or torch.
"""

from sonde.testing.client import ScriptedClient
from sonde.testing.conformance import CHECKS, Report, Verdict, assert_conforms, check_environment
from sonde.testing.sandboxes import SANDBOX_CHECKS, assert_sandbox_conforms, check_sandbox
from sonde.testing.scripted import VOWELS, ScriptedEnvironment, ScriptedTask, scripted_tasks, vowel_share

__all__ = [
    "ScriptedEnvironment", "ScriptedTask", "scripted_tasks", "vowel_share", "VOWELS",
    "ScriptedClient",
    "check_environment", "assert_conforms", "Report", "Verdict", "CHECKS",
    "check_sandbox", "assert_sandbox_conforms", "SANDBOX_CHECKS",
]  # fmt: skip
