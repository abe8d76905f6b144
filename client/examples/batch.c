/* batch.c - many prompts in one call: a bar while it runs, then the answers in their order.
 *
 *     batch PROMPT...         CBD_RUNTIME_DIR says where to look, if it is no usual place
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cbclient.h>

int main(int argc, char **argv)
{
    struct cb_prompt *prompts = calloc((size_t)argc, sizeof(*prompts));
    struct cb_request config;
    struct cb_batch batch;
    struct cb_outputs *outputs;
    int n_failed;

    if (!prompts)
        return 1;
    for (int i = 1; i < argc; i++)
        prompts[i - 1].text = argv[i];
    cb_request_init(&config);
    config.max_new_tokens = 24;
    cb_batch_init(&batch);
    batch.prompts = prompts;
    batch.n_prompts = (size_t)argc - 1;
    batch.config = &config;
    batch.progress_fd = STDERR_FILENO;

    n_failed = cb_generate_batch(NULL, &batch, &outputs); /* NULL: a handle for this call only */
    if (n_failed < 0) {
        fprintf(stderr, "cb_generate_batch: %s\n", cb_message());
        free(prompts);
        return 1;
    }
    for (size_t i = 0; i < outputs->n; i++) {
        const struct cb_output *o = &outputs->v[i];
        printf("[%zu] %s\n", i + 1, o->error ? o->error : o->text);
    }
    cb_outputs_free(outputs);
    free(prompts);
    return n_failed > 0;
}
