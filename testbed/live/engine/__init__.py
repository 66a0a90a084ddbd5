"""The live engine: one node that runs any plan with any codec, and one coordinator for any policy.

``settings`` says what a run is and refuses what cannot be; ``flow`` executes a plan at one node,
``delivery`` feeds it what arrives, ``exchange`` takes gradients and models through codecs along it,
``tasks`` is what a node trains, ``node`` is a member of the run, ``coordinator`` lets the policy
decide, ``launch`` starts all of them, ``on_ray`` where Ray places them, and ``own`` trains a user's
model. ``plan_run`` runs one plan alone against the clock, on a ``plan_node`` each. Messages travel
over :mod:`testbed.live.wire`.
"""
