"""Workers on other machines: Ray places them, and a campaign uses them like those that it starts itself.

A room of its own: no other package imports Ray, and only `commands/where.py` opens the door, for `--cluster`.

ray_workers    the door: workers that Ray places on the nodes of a cluster
remote_worker  a worker on another node, as the campaign sees it
node_worker    a worker on a node: owns a worker process there
messages       what travels between a campaign and a node
"""
