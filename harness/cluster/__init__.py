"""A campaign on many machines, and several campaigns as one.

ray_workers    workers that Ray places on the nodes of a cluster
remote_worker  a worker on another node, as the campaign sees it
node_worker    a worker on a node: owns a worker process there
messages       what travels between a campaign and a node
storage        output folders at a URL
merge          unites the folders of independent campaigns
"""
