/* A layer of the transformer in two calls, which run the operators of the other files in the order of
   engine/model/transformer.py (tests compare the bits).

   A step of a small model is some hundred operators of a few microseconds each, and a call from Python takes as long.
   Between the two calls the layer's KV is in the pool, and may be transferred. */

#include "attention_step.h"
#include "elementwise.h"
#include "experts.h"
#include "latent.h"
#include "linear.h"
#include "lora.h"

/* One layer's weights and parameters. Norms are fp32 [hidden] or null; `query_key_norm` is [heads + kv_heads, dim]. */
struct layer {
    const float *attention_norm, *attention_post_norm, *query_key_norm, *mlp_norm, *mlp_post_norm;
    struct linear query_key_value, attention_output, gate_up, down;
    struct attention_params params;
    int64_t queries, keys;           /* heads */
    int64_t dim, norm;               /* of a head; `enum norm` */
    int64_t rotation;                /* one of the step's, or -1: none */
    int64_t activation;              /* `enum activation` */
    const struct experts *experts;   /* or null; then gate_up and down are unused */
    const struct latent *latent;     /* or null; with it `query_key_value` is latent attention's first product */
};

/* Arguments that a step's layers share: places of its tokens, and buffers between operators. */
struct step {
    int64_t format;
    const struct attention *attention;
    int64_t tokens, fresh_count, row_count;
    const int64_t *slots, *fresh;     /* see baton_store */
    const int64_t *rows;              /* ascending: rows that the last layer computes behind its KV */
    const struct rotation *rotations; /* as many as the model has */
    double eps;
    char *hidden, *change, *normed;   /* [tokens, hidden] */
    char *part;                       /* where products go that become a `change`: there, or in memory of all ranks */
    char *heads;                      /* [tokens, heads + 2 x kv_heads, dim] */
    char *attended;                   /* [tokens, heads, dim] */
    char *gate_up, *gated;            /* [tokens, 2 x intermediate], [tokens, intermediate] */
    const struct experts_buffers *experts_buffers;
    const struct latent_buffers *latent_buffers;
    const struct adapters *adapters; /* or null for none */
};

/* Multiplies all tokens, or the kept rows, and applies their adapters. */
static void multiply(const struct linear *layer, const struct step *step, const char *x, long rows, char *y)
{
    const struct adapters *adapters = step->adapters;
    baton_linear(layer, x, layer->inputs, rows, y);
    if (adapters && layer->changes)
        baton_adapt(layer, adapters, rows == step->tokens ? &adapters->every : &adapters->kept, x, layer->inputs, y);
}

/* Moves the kept rows, of `width` bytes, to the front. */
static void keep(char *values, long width, const int64_t *rows, long count)
{
    for (long i = 0; i < count; i++)
        memmove(values + i * width, values + rows[i] * width, width);
}

/* hidden += change, except in the `first` layer; computes queries, keys and values, and stores the latter to `pool`. */
EXPORT void baton_layer_store(const struct layer *layer, const struct step *step, int first, char *pool)
{
    const int format = step->format;
    const long size = format == FP32 ? 4 : 2, stride = layer->query_key_value.outputs;
    const struct rotation *rotation = layer->rotation < 0 ? 0 : step->rotations + layer->rotation;
    long queries = layer->attention_output.inputs; /* values of a row before those that are stored */
    const struct heads heads = {
        layer->queries, layer->keys, layer->dim, stride, step->tokens, layer->norm, layer->query_key_norm, step->eps};
    baton_add_norm(
        format, step->hidden, first ? 0 : step->change, layer->attention_norm, step->tokens,
        layer->query_key_value.inputs, step->eps, step->normed);
    multiply(&layer->query_key_value, step, step->normed, step->tokens, step->heads);
    if (layer->latent) {
        latent_finish(layer->latent, rotation, step->heads, stride, step->tokens);
        queries = stride - step->attention->dim;
    } else {
        baton_rotate(format, &heads, rotation, step->heads);
    }
    baton_store(
        step->attention, step->heads + queries * size, stride, step->slots, step->tokens, step->fresh,
        step->fresh_count, pool);
}

/* Norms the change before it is added to the hidden state, if there is a weight. */
static void norm_change(const struct step *step, const float *weight, long rows, long width)
{
    if (weight)
        baton_add_norm(step->format, step->change, 0, weight, rows, width, step->eps, step->change);
}

/* hidden += `change`, which is attention's output; `change` = the MLP's, or `part` = this rank's part of it in fp32. */
EXPORT void baton_layer_mlp(const struct layer *layer, const struct step *step, long rows)
{
    const int format = step->format;
    const long hidden = layer->attention_output.outputs;
    norm_change(step, layer->attention_post_norm, rows, hidden);
    baton_add_norm(format, step->hidden, step->change, layer->mlp_norm, rows, hidden, step->eps, step->normed);
    if (layer->experts) {
        baton_experts(layer->experts, step->experts_buffers, step->normed, rows, step->change);
    } else {
        multiply(&layer->gate_up, step, step->normed, rows, step->gate_up);
        baton_gate(format, layer->activation, step->gate_up, rows, layer->down.inputs, step->gated);
        multiply(&layer->down, step, step->gated, rows, step->part);
    }
}

/* hidden += attention's output; `change` = the MLP's output. The `last` layer keeps only `rows`, as the first rows of both.
   Of a model on several ranks `part` is this rank's part of attention's output in fp32, and the rest is yet to be done. */
EXPORT void baton_layer_attend(const struct layer *layer, const struct step *step, int last, const void *pool)
{
    const long size = step->format == FP32 ? 4 : 2;
    const long hidden = layer->attention_output.outputs, queries = layer->attention_output.inputs;
    const long rows = last ? step->row_count : step->tokens;
    if (!rows)
        return;
    if (layer->latent)
        latent_attend(
            layer->latent, step->latent_buffers, step->attention, &layer->params, step->rotations + layer->rotation,
            step->heads, layer->query_key_value.outputs, step->tokens, pool, step->attended);
    else
        baton_attend(step->attention, &layer->params, step->heads, layer->query_key_value.outputs, pool, step->attended);
    if (last) {
        keep(step->attended, queries * size, step->rows, rows);
        keep(step->hidden, hidden * size, step->rows, rows);
    }
    multiply(&layer->attention_output, step, step->attended, rows, step->part);
    if (!layer->attention_output.partial) {
        baton_layer_mlp(layer, step, rows);
        norm_change(step, layer->mlp_post_norm, rows, hidden);
    }
}
