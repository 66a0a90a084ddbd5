"""Real processes on real sockets: the same codecs and learner, without virtual time."""
