"""Pictures of what lies where: matrices, shards, meshes, machines."""
