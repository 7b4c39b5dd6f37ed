"""What the metadata that vLLM builds for its kernels tells each row of a batch to read and to write.

layer_rows      one row's reads and writes in one layer, as plain data
metadata        reads metadata into such rows, as the real kernels do
bounds          checks that indices in metadata name something
contracts       the metadata of a state layer: gated delta net, Mamba 1 or 2, short convolution, linear
all_mode        the same in mode all
linear_attention  the same of plain linear attention
"""
