/* daemon/model/weights.c */
#include "daemon/model/weights.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int weights_init(struct weights *w, const struct backend_ops *ops, struct backend *backend,
                 uint32_t n_layers)
{
    *w = (struct weights){.ops = ops, .backend = backend, .n_layers = n_layers};
    w->layers = calloc(n_layers, sizeof w->layers[0]);
    return w->layers ? 0 : -ENOMEM;
}

static void free_weight(struct weights *w, struct weight *weight)
{
    if (weight)
        w->ops->weight_free(weight);
}

static void free_buffer(struct weights *w, float *buffer)
{
    if (buffer)
        w->ops->buffer_free(w->backend, buffer);
}

void weights_fini(struct weights *w)
{
    for (uint32_t i = 0; w->layers && i < w->n_layers; i++) {
        struct layer *l = &w->layers[i];

        free_weight(w, l->qkv);
        free_weight(w, l->out);
        free_weight(w, l->gate_up);
        free_weight(w, l->down);
        free_buffer(w, l->attn_norm);
        free_buffer(w, l->ffn_norm);
        free_buffer(w, l->qkv_bias);
    }
    if (w->head != w->embed)
        free_weight(w, w->head);
    free_weight(w, w->embed);
    free_buffer(w, w->output_norm);
    free_buffer(w, w->cos_sin);
    free(w->rope_factors);
    free(w->layers);
    *w = (struct weights){0};
}

/* Angles in double, from the integer position, never accumulated: at position 100,000 a float angle
 * is off by a hundredth of a turn's radian. */
int weights_make_rope(struct weights *w, const struct config *c, uint32_t n_positions)
{
    uint32_t n_pairs = c->rope_dims / 2;
    size_t n = (size_t)n_positions * n_pairs * 2;
    float *table = malloc(n * sizeof *table);
    double *frequency = malloc(n_pairs * sizeof *frequency);
    void *data;
    int r = -ENOMEM;

    if (table && frequency) {
        for (uint32_t i = 0; i < n_pairs; i++) {
            frequency[i] = pow(c->rope_base, -2.0 * i / c->rope_dims) / c->rope_factor;
            if (w->rope_factors)
                frequency[i] /= (double)w->rope_factors[i];
        }
        for (uint32_t p = 0; p < n_positions; p++)
            for (uint32_t i = 0; i < n_pairs; i++) {
                float *pair = table + ((size_t)p * n_pairs + i) * 2;

                pair[0] = (float)cos(p * frequency[i]);
                pair[1] = (float)sin(p * frequency[i]);
            }
        r = w->ops->buffer_new(w->backend, &data, n * sizeof *table, table);
    }
    free(frequency);
    free(table);
    if (r)
        return r;
    w->cos_sin = data;
    w->rope = (struct rope){
        .kind = c->arch->rope,
        .n_dims = c->rope_dims,
        .n_positions = n_positions,
        .cos_sin = w->cos_sin,
    };
    return 0;
}
