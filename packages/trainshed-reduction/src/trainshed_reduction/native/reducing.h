/* What the parts of a reducer's groups share; reducing.c says what they are. */

#ifndef TRAINSHED_REDUCING_H
#define TRAINSHED_REDUCING_H

#include "frames.h"
#include "poller.h"

/* Memory of a payload, held by whoever counts among its `uses`. */
struct block {
    struct block *next; /* among the spare ones */
    uint32_t uses, size;
    uint8_t room; /* 2 to the power of this */
    _Alignas(64) uint8_t data[];
};

#define ROOMS 24
struct blocks {
    struct block *spare[ROOMS];
    uint64_t spare_bytes, used_bytes;
};

/* ---- rows.c ---- */

/* With one use; NULL: no memory. */
struct block *block_take(struct blocks *blocks, uint32_t size);
void block_drop(struct blocks *blocks, struct block *block); /* NULL: nothing */
void blocks_free(struct blocks *blocks);

/* The chunks that the ranks have sent for one position. Each rank's is added as soon as those of all lower ranks are in,
 * so that the sum does not depend on who comes first. */
struct row {
    struct header shape; /* of the first that came */
    double since;
    uint32_t arrived, next;
    struct block *first, *total, *final, **early; /* `early`: by rank */
    uint16_t *order;                              /* the ranks that have come */
    bool *takes;                                  /* by rank: the result is to go there */
};

/* Sets up a row's arrays; false: no memory. */
bool row_begin(struct row *row, uint32_t world, const struct header *shape, double at);
/* Whether a chunk of this shape belongs into it. */
bool row_agrees(const struct row *row, const struct header *header);
/* The block is the row's from now on: a FINAL one is the result already, and no rank's own chunk matters. False: no
 * memory. */
bool row_add(struct blocks *blocks, struct row *row, const struct header *header, struct block *block, uint32_t world);
/* A use of the result. All ranks must have sent something, or one of them the result. */
struct block *row_result(struct row *row, uint32_t world);
void row_end(struct blocks *blocks, struct row *row, uint32_t world);

struct out {
    struct header header;
    struct block *payload; /* NULL: none */
};

struct group;

/* A worker's connection. */
struct member {
    struct group *group; /* NULL: of none that runs; what it sends is no chunk then, and the caller hears of it */
    struct member *next; /* among those with something to do */
    int handle, error;   /* -1: it is broken; an errno that is still to be told */
    uint32_t slot;
    uint16_t rank;
    bool readable, writable, is_due;
    bool is_stopped; /* the caller was told of something, and nothing is read until he says so */
    bool is_leaving; /* it only hears why: what it sends is thrown away */
    struct incoming incoming;
    struct block *payload; /* of the incoming chunk; NULL: another frame comes in, to `text` */
    uint8_t text[TEXT];
    uint64_t position;     /* of the next chunk that it sends */
    uint64_t acknowledged, received, ordinal, unanswered, unsent;
    struct out *out; /* a ring */
    uint32_t out_room, out_first, out_count;
    size_t offset; /* of the first of them, its header included */
};

struct group {
    uint32_t world;
    struct member **members; /* by rank; NULL: it has left */
    uint32_t lacking;        /* ranks that had left before the group began */
    uint32_t present;        /* members; the last of them that parts ends the group */
    uint64_t head, parted;   /* positions: of the oldest row; from which on a rank that has left has sent nothing */
    struct row *rows;        /* a ring from `head` on */
    size_t room;
    uint64_t begun;          /* rows that some chunks are in, and not all */
    int64_t operation; /* the latest of which a chunk is finished, and its ordinal; -1: none */
    uint64_t ordinal;
};

struct reducer {
    struct poller poller;
    int elsewhere;           /* a handle of the caller's, at slot 0 */
    struct member **members; /* by slot */
    uint32_t slots;
    struct member *due, **due_end; /* those with something to do, in the order of their turns */
    struct blocks blocks;
    uint64_t moved;       /* bytes received and sent so far */
    struct report report; /* of the run under way */
};

/* ---- members.c ---- */

/* It has something to do. */
void become_due(struct reducer *r, struct member *member);
struct member *take_due(struct reducer *r);
/* Sends and reads what can be, and gives its turn to the next. */
void member_serve(struct reducer *r, struct member *member);
/* To be sent after all that is to be sent already. Takes over a use of the payload; false: no memory. */
bool member_send(struct reducer *r, struct member *member, const struct header *header, struct block *payload);
/* It is in no group any more, and what is coming of a chunk is forgotten. */
void member_part(struct reducer *r, struct member *member);
/* After `member_part`. */
void member_end(struct reducer *r, struct member *member);
struct row *row_at(const struct group *group, uint64_t position);

#endif
