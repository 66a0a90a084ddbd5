"""What methods run on: networks, training, live processes, and the one result row."""
