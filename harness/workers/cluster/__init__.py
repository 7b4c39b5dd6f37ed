"""Workers on other machines: Ray places them, and a campaign uses them like those that it starts itself.

ray_workers    workers that Ray places on the nodes of a cluster
remote_worker  a worker on another node, as the campaign sees it
node_worker    a worker on a node: owns a worker process there
messages       what travels between a campaign and a node
"""
