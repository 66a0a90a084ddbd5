"""HiPS as a running system: workers, servers and schedulers that exchange keyed tensors.

Roles are state machines that know no socket (``messages``, ``roles``, ``scheduler``);
``zmq_transport`` carries their messages over ZeroMQ, ``node`` runs one of them, and ``launch``
starts all from one file (``settings``): ``python -m slowlink.testbed.live.hips cluster.yaml``.
Frames are checked for damage but not authenticated: nodes trust whoever reaches them, so run them
in a network of your own.

Source: GeoMX, sections 2 and 3; membership, snapshots and recovery are ours.
"""
