"""Pipeline parallelism: schedules as data, and one door to each of their uses."""
