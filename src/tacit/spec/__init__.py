"""What people write down: YAML -> checked objects."""
