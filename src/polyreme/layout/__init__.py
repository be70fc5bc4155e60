"""Who holds what: layers, parameters, shards, owners, buckets and boundaries. Pure functions on plan + model."""
