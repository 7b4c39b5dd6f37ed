"""What runs in the place of the model: layers and drafter that compute tags in vLLM's own KV tensors.

layers          attention layers, at the places that vLLM's own metadata names (`rows`)
state_layers    layers with a recurrent state
drafter         proposes the drafts that the trace specifies
draft_model     a drafter that runs as a model on the device
recorder        puts the device work of a step in order
forward         one forward: the rows that its layers read from vLLM's metadata, and their accesses
patches         wrap vLLM's copies, so that the recorder sees them
"""
