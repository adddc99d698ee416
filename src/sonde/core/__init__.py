"""Names, records, interventions as data, errors. No torch, no I/O; everything else builds on this room."""
