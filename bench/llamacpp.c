// Measures decode steps and prompts of llama.cpp for llamacpp.py, and prints one JSON object.
//
//   llamacpp MODEL CONTEXT KV-TYPE FLASH-ATTENTION THREADS SECONDS BATCHES PROMPTS
//
// BATCHES and PROMPTS are comma-separated numbers; 0 measures no step or prompt. FLASH-ATTENTION is
// 0 or 1. A decode step computes one token of each sequence, at the end of contexts of the same
// length, with logits. Each step and prompt is repeated for SECONDS seconds, warm-ups included, but 5
// to 1000 steps or 3 to 1000 prompts are measured. The output has the median time in seconds. Environment
// variable GGML_DIR is the directory of GGML's CPU libraries.
#include "ggml-backend.h"
#include "llama.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 1000, CHUNK = 512 };

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void fail(const char *what) {
	fprintf(stderr, "llamacpp: %s\n", what);
	exit(1);
}

static void errors_only(enum ggml_log_level level, const char *text, void *data) {
	(void)data;
	if (level >= GGML_LOG_LEVEL_ERROR)
		fputs(text, stderr);
}

static bool silent(float progress, void *data) {
	(void)progress;
	(void)data;
	return true;
}

static void put(struct llama_batch *b, int token, int pos, int sequence, int logits) {
	int i = b->n_tokens++;
	b->token[i] = token;
	b->pos[i] = pos;
	b->n_seq_id[i] = 1;
	b->seq_id[i][0] = sequence;
	b->logits[i] = logits;
}

struct options {
	int context, flash, threads;
	double seconds;
	enum ggml_type kv;
};

static struct llama_context *open_context(struct llama_model *m, const struct options *o, int sequences, int tokens) {
	struct llama_context_params p = llama_context_default_params();
	p.n_ctx = sequences * tokens;
	p.n_batch = 2048;
	p.n_ubatch = CHUNK;
	p.n_seq_max = sequences;
	p.n_threads = p.n_threads_batch = o->threads;
	p.type_k = p.type_v = o->kv;
	p.flash_attn_type = o->flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
	p.kv_unified = 0;
	p.no_perf = 1;
	struct llama_context *c = llama_init_from_model(m, p);
	if (!c)
		fail("llama_init_from_model failed");
	return c;
}

static double decode(struct llama_model *m, const struct options *o, int n, int vocabulary, struct llama_batch *b) {
	struct llama_context *c = open_context(m, o, n, o->context);
	llama_memory_t memory = llama_get_memory(c);
	for (int i = 0; i < o->context - 1;) {
		b->n_tokens = 0;
		for (; i < o->context - 1 && b->n_tokens < CHUNK; i++)
			put(b, (i * 7919 + 13) % vocabulary, i, 0, 0);
		if (llama_decode(c, *b))
			fail("llama_decode failed for the context");
	}
	for (int s = 1; s < n; s++)
		llama_memory_seq_cp(memory, 0, s, -1, -1);
	llama_synchronize(c);
	double took[MOST], start = now();
	int runs = 0;
	for (int r = 0; runs < MOST && (runs < 5 || now() - start < o->seconds); r++) {
		b->n_tokens = 0;
		for (int s = 0; s < n; s++)
			put(b, (r * 31 + s * 101) % vocabulary, o->context - 1, s, 1);
		double at = now();
		if (llama_decode(c, *b))
			fail("llama_decode failed for a decode step");
		llama_synchronize(c);
		if (r >= 2)
			took[runs++] = now() - at;
		for (int s = 0; s < n; s++)
			llama_memory_seq_rm(memory, s, o->context - 1, -1);
	}
	qsort(took, runs, sizeof *took, compare);
	llama_free(c);
	return took[runs / 2];
}

static double prompt(struct llama_model *m, const struct options *o, int n, int vocabulary, struct llama_batch *b) {
	struct llama_context *c = open_context(m, o, 1, n < CHUNK ? CHUNK : n);
	double took[MOST], start = now();
	int runs = 0;
	for (int r = 0; runs < MOST && (runs < 3 || now() - start < o->seconds); r++) {
		b->n_tokens = 0;
		for (int i = 0; i < n; i++)
			put(b, (i * 7919 + 13) % vocabulary, i, 0, i == n - 1);
		double at = now();
		if (llama_decode(c, *b))
			fail("llama_decode failed for a prompt");
		llama_synchronize(c);
		if (r >= 1)
			took[runs++] = now() - at;
		llama_memory_clear(llama_get_memory(c), 0);
	}
	qsort(took, runs, sizeof *took, compare);
	llama_free(c);
	return took[runs / 2];
}

int main(int count, char **v) {
	if (count != 9)
		fail("usage: llamacpp MODEL CONTEXT KV-TYPE FLASH-ATTENTION THREADS SECONDS BATCHES PROMPTS");
	llama_log_set(errors_only, NULL);
	ggml_backend_load_all_from_path(getenv("GGML_DIR"));
	llama_backend_init();
	struct options o = {.context = atoi(v[2]), .flash = atoi(v[4]), .threads = atoi(v[5]), .seconds = atof(v[6])};
	o.kv = !strcmp(v[3], "f32") ? GGML_TYPE_F32 : !strcmp(v[3], "bf16") ? GGML_TYPE_BF16 : GGML_TYPE_F16;
	double start = now();
	struct llama_model_params p = llama_model_default_params();
	p.progress_callback = silent;
	struct llama_model *m = llama_model_load_from_file(v[1], p);
	if (!m)
		fail("llama_model_load_from_file failed");
	printf("{\"load\": %.4f", now() - start);
	int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(m));
	struct llama_batch b = llama_batch_init(8192, 0, 1);
	for (char *at = strtok(v[7], ","); at && atoi(at); at = strtok(NULL, ","))
		printf(", \"decode %d\": %.6f", atoi(at), decode(m, &o, atoi(at), vocabulary, &b));
	for (char *at = strtok(v[8], ","); at && atoi(at); at = strtok(NULL, ","))
		printf(", \"prompt %d\": %.6f", atoi(at), prompt(m, &o, atoi(at), vocabulary, &b));
	printf("}\n");
	return 0;
}
