"""Twenty Questions: objects, oracles that judge a player's messages, the environment, and a look at an episode."""
