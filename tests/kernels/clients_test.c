/* Many clients of a model of one int64 per frame and three float32 per result, two states:
   clients_test MODEL ROWS RESULTS. ROWS: the rows of a table that there are. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "c_check.h"
#include "onernn.h"

enum { CLIENTS = 3, QUEUE = 4, WIDTH = 3 };

static onernn_clients *clients;
static FILE *out;

static int32_t push(const int64_t *ids, int64_t count, const int64_t *words) {
  const void *frames[] = {words};
  return onernn_push(clients, ids, count, frames);
}

static int32_t pull(const int64_t *ids, int64_t count, int64_t *refused) {
  float *results = malloc(sizeof(float) * WIDTH * (size_t)(count + 1));
  void *to[] = {results};
  const int32_t status = onernn_pull(clients, ids, count, to, refused);
  if (!status) fwrite(results, sizeof(float) * WIDTH, (size_t)count, out);
  free(results);
  return status;
}

int main(int argc, char **argv) {
  CHECK(argc == 4);
  const int64_t rows = atoll(argv[2]);
  onernn_model *model;
  CHECK(!onernn_open(argv[1], 1, &model));
  CHECK(onernn_clients_open(NULL, 1, 2, 1, &clients) == ONERNN_MISUSED);
  CHECK(onernn_clients_open(model, 0, 2, 1, &clients) == ONERNN_MISUSED);
  CHECK(onernn_clients_open(model, 1, 9, 1, &clients) == ONERNN_MISUSED && !clients);
  CHECK(onernn_clients_open(model, 1, 3, 1, &clients) == ONERNN_MISFIT && !clients);
  CHECK(onernn_clients_open(model, INT64_MAX, 2, 1, &clients) == ONERNN_TOO_LARGE && !clients);
  CHECK(!onernn_clients_open(model, CLIENTS, 2, QUEUE, &clients));
  onernn_close(model); /* the clients keep what they need */
  out = fopen(argv[3], "wb");
  CHECK(out);
  int64_t ids[CLIENTS], more, refused;
  for (int at = 0; at < CLIENTS; ++at) CHECK(!onernn_client_open(clients, &ids[at]));
  CHECK(onernn_client_open(clients, &more) == ONERNN_TOO_MUCH);

  /* One frame of each, then two of the first and one of the last. */
  CHECK(!push(ids, 3, (int64_t[]){1, 2, 3}));
  CHECK(!push((int64_t[]){ids[0], ids[2], ids[0]}, 3, (int64_t[]){4, 5, 6}));
  CHECK(!pull((int64_t[]){ids[2], ids[0], ids[1]}, 3, NULL));
  CHECK(!pull((int64_t[]){ids[0], ids[0], ids[2]}, 3, &refused) && refused == -1);

  /* Calls that fail take and pull nothing. */
  CHECK(push(ids, 3, NULL) == ONERNN_MISUSED);
  CHECK(push(ids, -1, (int64_t[]){1}) == ONERNN_MISUSED);
  CHECK(push((int64_t[]){ids[0], 99}, 2, (int64_t[]){1, 1}) == ONERNN_MISUSED);
  CHECK(push((int64_t[]){ids[1], ids[0], ids[0], ids[0], ids[0], ids[0]}, 6,
             (int64_t[]){1, 1, 1, 1, 1, 1}) == ONERNN_TOO_MUCH);
  CHECK(pull(ids, 1, NULL) == ONERNN_MISUSED);
  CHECK(pull((int64_t[]){99}, 1, NULL) == ONERNN_MISUSED);
  CHECK(!push(ids, 0, NULL) && !pull(ids, 0, NULL));

  /* A refused frame is left out, the others' results stay. */
  CHECK(!push(ids, 3, (int64_t[]){7, rows, 8}));
  CHECK(pull(ids, 3, &refused) == ONERNN_REFUSED && refused == 1);
  CHECK(pull(ids, 3, &refused) == ONERNN_MISUSED && refused == -1);
  CHECK(!pull((int64_t[]){ids[0], ids[2]}, 2, NULL));
  CHECK(!push(&ids[1], 1, (int64_t[]){9}) && !pull(&ids[1], 1, NULL));

  /* An old id never names a client again; a new one begins with zeros. */
  CHECK(!onernn_client_close(clients, ids[0]));
  CHECK(onernn_client_close(clients, ids[0]) == ONERNN_MISUSED);
  CHECK(!onernn_client_open(clients, &more) && more != ids[0]);
  CHECK(push(ids, 1, (int64_t[]){1}) == ONERNN_MISUSED);
  CHECK(!push(&more, 1, (int64_t[]){2}) && !pull(&more, 1, NULL));
  onernn_clients_close(clients);
  onernn_clients_close(NULL);
  return fclose(out);
}
