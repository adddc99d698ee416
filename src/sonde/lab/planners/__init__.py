"""Who decides what to try next? One file per planner.

minimising    delta debugging: the smallest set that still does it
search        deterministic, needs no language model: sufficient and breaking layer sets
openai        any OpenAI-compatible server with tool calls
"""
