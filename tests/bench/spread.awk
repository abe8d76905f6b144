# spread.awk -v keys=K: CSV with a head in, CSV with a head out. Rows that agree in the first K columns
# become one: of each other column the median, the least and the most.
BEGIN { FS = OFS = "," }
function sorted(row, column, n, v, i, k, t) {
    n = split(values[row, column], v, " ")
    for (i = 2; i <= n; i++)
        for (k = i; k > 1 && v[k - 1] + 0 > v[k] + 0; k--) { t = v[k]; v[k] = v[k - 1]; v[k - 1] = t }
    return v[int((n + 1) / 2)] OFS v[1] OFS v[n]
}
function key(n, text, i) {
    for (i = 1; i <= n; i++) text = text (i > 1 ? OFS : "") $i
    return text
}
NR == 1 {
    head = key(keys)
    for (i = keys + 1; i <= NF; i++) head = head OFS $i OFS $i "_min" OFS $i "_max"
    print head
    columns = NF
    next
}
{
    k = key(keys)
    if (!(k in seen)) { seen[k] = 1; order[++rows] = k }
    for (i = keys + 1; i <= columns; i++) values[k, i] = values[k, i] " " $i
}
END {
    for (r = 1; r <= rows; r++) {
        line = order[r]
        for (i = keys + 1; i <= columns; i++) line = line OFS sorted(order[r], i)
        print line
    }
}
