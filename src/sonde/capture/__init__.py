"""Recording, interventions in force, and the trajectory they leave."""
