"""What the metadata that vLLM builds for its kernels tells each row of a batch to read and to write.

layer_rows      one row's reads and writes in one layer, as plain data
kernel_reads    reads the metadata of gated delta nets and of attention into such rows, as the real kernels do
bounds          checks that indices in metadata name something
contracts       picks the reader of a state layer; reads Mamba 1 and 2 and short convolutions itself
all_mode        reads the metadata of Mamba 1 and 2 in mode all, which has a state at each block boundary
linear_attention  reads the metadata of plain linear attention
"""
