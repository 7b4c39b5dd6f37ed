"""Workers on other nodes, behind the interface of local ones (`workers.protocol`). The only package that imports Ray.

ray_workers    the door: connects to a cluster, and opens workers that Ray places on its nodes
remote_worker  a worker on another node, as the campaign sees it
node_worker    a worker on a node: owns a worker process there
messages       what travels between a campaign and a node

Of the rest of hybridfuzz only `commands/where.py` imports it, for `--cluster`.
"""
