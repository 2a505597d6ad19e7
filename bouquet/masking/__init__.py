"""Secure sums: what nodes send is masked so that their sum can be read, and nothing else.

After Bonawitz et al. (CCS 2017), with the graph of neighbours of Bell et al. (CCS 2020, SecAgg+). In a round

    keys      every node makes fresh keys, signed where it has a registered one          `keys`
    shares    every node shares its two secrets among its neighbours, encrypted          `graph`, `shares`
    input     every node sends its numbers on a grid, under masks                        `fixed`, `masks`
    agree     every node signs who is in the sum, and what was trained from
    unmask    neighbours reveal, of each node, one of its two secrets                    `participant`, `coordinator`

With T the digest of everything that came before the input (round, settings, all keys), N(i) the neighbours of node i,
and numbers modulo 2^32 or 2^64, the input is

    y_i = x_i + PRG(b_i) + Σ_{j ∈ N(i), i < j} PRG(s_ij) - Σ_{j ∈ N(i), i > j} PRG(s_ij),    s_ij = X25519(s_i, s_j)

What is between two nodes that are in the sum cancels. Of a node that is in it the self-mask b_i is revealed, of one
that was lost before its input came the mask key s_i; of one that is lost later, shares of b_i are enough.

Who is held off, and by what. Let there be n nodes, a threshold of τ (`secure-sums-threshold`), and c of the nodes that
tell the server all they know.

- *A curious server* that follows the protocol learns the sum over the nodes that gave input, and nothing else, while
  c < τ n. (From the sum and what the c nodes sent it has the sum over the others: that is what a sum is.)
- *A lying server* may tell nodes different things, drop whom it likes, repeat messages, send different models. Each
  node answers each stage of a round once, and reveals of another node one secret, never both. It reveals nothing
  before more than τ n nodes have signed the same survivors, the same model and the same n keys; two such sets have an
  honest node in common while c < (2 τ - 1) n, one third at τ = 2/3. Where neighbours are fewer than all other nodes,
  the same holds for each neighbourhood, whose members follow from all keys: a server that can try many sets of nodes
  can look for a neighbourhood in which c is larger.
- *An inventive server* makes up nodes, so that an honest one is alone among them. Against that keys are signed with
  registered ones, which an authority has certified (`identity`). Where there are none, as in a simulation, it is
  assumed that the server invents no nodes.
- *A lying node* can spoil a sum: its input is masked, and nobody can look at it. It cannot be looked at by the others,
  nor learn anything of theirs. Wrong shares are noticed, by commitments, and replaced by others if there are enough.

What is not hidden: who took part and when; and sums of different rounds can be subtracted from each other.
"""
