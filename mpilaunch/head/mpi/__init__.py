"""What MPI programs ask of the head."""
