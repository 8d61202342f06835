# Writes a cluster description for `tandem sim --cluster` from what sinfo prints.
#
# Partitions that share no node, each with GPUs of its own:
#   sinfo -h -N -o '%R %N %G' | sort -u | awk -f slurm-cluster.awk > cluster.toml
# Partitions that overlap, as one pool that takes every job:
#   sinfo -h -N -o '- %N %G' | sort -u | awk -f slurm-cluster.awk > cluster.toml
#
# Nodes without a GPU are left out. Memory and speed of the GPUs are not known here: add them by hand.
{
    # Sockets stand in brackets, commas included: gpu:a100:4(S:0,2),shard:400.
    gsub(/\([^)]*\)/, "", $3)
    gpus = 0
    items = split($3, item, ",")
    for (i = 1; i <= items; i++)
        if (item[i] ~ /^gpu:/) {
            parts = split(item[i], part, ":")
            gpus += part[parts]
        }
    if (gpus == 0) next
    if (!($1 in groups)) names[++partitions] = $1
    if (!(($1, gpus) in count)) groups[$1] = groups[$1] " " gpus
    count[$1, gpus]++
}
END {
    # In the order in which they came, so that the same cluster gives the same file.
    for (p = 1; p <= partitions; p++) {
        print "[[partition]]"
        if (names[p] != "-") printf "name = \"%s\"\n", names[p]
        print "nodes = ["
        sizes = split(groups[names[p]], size, " ")
        for (s = 1; s <= sizes; s++)
            printf "  { count = %d, gpus = %d },\n", count[names[p], size[s]], size[s]
        print "]"
    }
}
