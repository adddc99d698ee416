"""SWE-bench: instances from its own files, played in their own containers and graded by its own harness."""
