"""Circuit finders, one file each, all `(model, pairs, metric, **options) -> Scores`."""
