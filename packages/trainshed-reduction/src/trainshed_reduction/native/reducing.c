/*
 * Runs the groups of a reducer without Python's interpreter: receives chunks, adds them, and sends the sums. The Python
 * module reducer.groups handles membership and errors, and receives all frames that are not valid chunks.
 *
 * The same thread must call all functions. The caller closes sockets after reducer_drop.
 */

#define _GNU_SOURCE
#include "reducing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* With traffic, a run returns after this many seconds, so that the caller can handle other work. */
#define RUN_LIMIT 1.0

/* Finds readable and writable connections. Returns whether the caller's file descriptor `elsewhere` is readable. */
static bool watch(struct reducer *r, double seconds)
{
    struct ready ready[MAX_READY];
    int milliseconds = seconds <= 0 ? 0 : seconds > 1e6 ? -1 : (int)(seconds * 1000) + 1;
    bool elsewhere = false, woken = false;
    int found = poller_wait(&r->poller, milliseconds, ready, &woken);
    for (int i = 0; i < found; i++) {
        struct member *member = r->members[ready[i].index];
        if (!member) {
            elsewhere = true;
            continue;
        }
        member->readable |= ready[i].readable;
        member->writable |= ready[i].writable;
        become_due(r, member);
    }
    return elsewhere;
}

EXPORT void reducer_free(struct reducer *r)
{
    if (!r)
        return;
    blocks_free(&r->blocks);
    poller_close(&r->poller);
    free(r->members);
    free(r);
}

/* `elsewhere`: a file descriptor that becomes readable when the caller has other work. Returns NULL if no memory or
 * no file descriptor is available. */
EXPORT struct reducer *reducer_new(int elsewhere)
{
    struct reducer *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->due_end = &r->due;
    r->elsewhere = elsewhere;
    r->slots = 16;
    r->members = calloc(r->slots, sizeof *r->members);
    if (poller_open(&r->poller) && r->members && poller_add(&r->poller, 0, elsewhere))
        return r;
    reducer_free(r);
    return NULL;
}

/* Creates a group of `world` ranks that starts at position `head`. It ends when the last joined rank leaves.
 * `operation`, `ordinal`: as returned by reducer_group. `lacking`: number of ranks that left before the start.
 * `parted`: the first position for which such a rank has sent no chunk. Returns NULL if no memory is available. */
EXPORT struct group *reducer_begin(uint32_t world, uint64_t head, int64_t operation, uint64_t ordinal, uint32_t lacking,
                                   uint64_t parted)
{
    struct group *group = calloc(1, sizeof *group);
    if (!group)
        return NULL;
    *group = (struct group){.world = world, .head = head, .lacking = lacking, .parted = parted, .room = 64};
    group->operation = operation;
    group->ordinal = ordinal;
    group->members = calloc(world, sizeof *group->members);
    group->rows = calloc(group->room, sizeof *group->rows);
    if (group->members && group->rows)
        return group;
    free(group->members);
    free(group->rows);
    free(group);
    return NULL;
}

/* Adds a connection, which belongs to no group yet. Returns its slot; below 0: -errno. */
EXPORT int reducer_add(struct reducer *r, int handle)
{
    uint32_t slot = 1;
    while (slot < r->slots && r->members[slot])
        slot++;
    if (slot == r->slots) {
        struct member **grown = realloc(r->members, 2 * r->slots * sizeof(struct member *));
        if (!grown)
            return -ENOMEM;
        memset(grown + r->slots, 0, r->slots * sizeof(struct member *));
        r->members = grown;
        r->slots *= 2;
    }
    struct member *member = calloc(1, sizeof *member);
    if (!member)
        return -ENOMEM;
    *member = (struct member){.handle = handle, .slot = slot, .incoming.is_single = true};
    if (!poller_add(&r->poller, slot, handle)) {
        int error = errno;
        free(member);
        return -error;
    }
    r->members[slot] = member;
    return (int)slot;
}

/* Continues to read a connection after a reported frame. */
EXPORT void reducer_resume(struct reducer *r, uint32_t slot)
{
    struct member *member = r->members[slot];
    member->incoming.got = 0;
    member->is_stopped = false;
    become_due(r, member);
}

/* Adds a connection to a group as a rank. `received`: the rank already has all results below this position. */
EXPORT void reducer_join(struct reducer *r, uint32_t slot, struct group *group, uint32_t rank, uint64_t received)
{
    struct member *member = group->members[rank] = r->members[slot];
    group->present++;
    member->group = group;
    member->rank = (uint16_t)rank;
    member->position = group->head;
    member->acknowledged = member->received = received;
    member->incoming.is_single = false;
}

/* Returns the number of unsent bytes. */
EXPORT uint64_t reducer_unsent(const struct reducer *r, uint32_t slot)
{
    return r->members[slot]->unsent;
}

/* Removes a rank that has sent BYE from its group. The other ranks continue, using the chunks that the rank has
 * sent. */
EXPORT void reducer_leave(struct reducer *r, uint32_t slot)
{
    struct member *member = r->members[slot];
    if (member->position < member->group->parted)
        member->group->parted = member->position;
}

/* Removes a connection from its group, sends its unsent frames, and then ends the stream. */
EXPORT void reducer_dismiss(struct reducer *r, uint32_t slot)
{
    struct member *member = r->members[slot];
    member_part(r, member);
    member->is_leaving = true;
    member->is_stopped = false;
    become_due(r, member);
}

/* Removes a connection. The caller may close its socket afterwards. */
EXPORT void reducer_drop(struct reducer *r, uint32_t slot)
{
    struct member *member = r->members[slot];
    if (member->handle >= 0)
        poller_remove(&r->poller, member->handle);
    r->members[slot] = NULL;
    member_part(r, member);
    member_end(r, member);
}

/* Queues a frame after all other unsent frames. Returns 0 or an errno. */
EXPORT int reducer_tell(struct reducer *r, uint32_t slot, const uint8_t *frame)
{
    struct header header;
    struct block *payload = NULL;
    memcpy(&header, frame, HEADER);
    if (header.nbytes) {
        payload = block_take(&r->blocks, header.nbytes);
        if (!payload)
            return ENOMEM;
        memcpy(payload->data, frame + HEADER, header.nbytes);
    }
    return member_send(r, r->members[slot], &header, payload) ? 0 : ENOMEM;
}

/* Serves until an event occurs, the caller has other work, or `seconds` have passed (below 0: no limit). With
 * traffic, it returns after at most one second. Returns the number of events. */
EXPORT int reducer_run(struct reducer *r, double seconds, struct event *events, int capacity, char *text,
                       size_t text_room)
{
    double until = seconds < 0 ? NEVER : now() + seconds, told = NEVER;
    r->report = (struct report){.events = events, .capacity = capacity, .text = text, .text_room = text_room};
    poller_renew(&r->poller, 0, r->elsewhere);
    for (;;) {
        uint64_t before = r->moved;
        bool elsewhere = watch(r, r->due ? 0 : least(until, told) - now());
        struct member *last = NULL;
        if (r->due)
            for (last = r->due; last->next;)
                last = last->next;
        while (r->due && !report_is_full(&r->report)) {
            struct member *member = take_due(r);
            member_serve(r, member);
            if (member == last)
                break; /* Poll the sockets before serving a member a second time. */
        }
        double at = now();
        if (told == NEVER && r->moved != before)
            told = at + RUN_LIMIT;
        if (elsewhere || r->report.filled || at >= least(until, told))
            return r->report.filled;
    }
}

/* Returns a member's state: its position and the ordinal of its latest operation. */
EXPORT void reducer_member(const struct reducer *r, uint32_t slot, uint64_t state[2])
{
    const struct member *member = r->members[slot];
    state[0] = member->position;
    state[1] = member->ordinal;
}

/* Returns a group's state: the position of its oldest row; the latest operation with a finished chunk (-1: none) and
 * its ordinal; the number of positions for which some ranks have sent chunks, but not all. */
EXPORT void reducer_group(const struct group *group, int64_t state[4])
{
    state[0] = (int64_t)group->head;
    state[1] = group->operation;
    state[2] = (int64_t)group->ordinal;
    state[3] = (int64_t)group->begun;
}

/* Returns the number of ranks that have sent a chunk for a position. `header`: the first chunk's HEADER bytes; `since`:
 * the time of its arrival; `ranks`: the ranks in order of arrival, with space for all ranks of the group. */
EXPORT uint32_t reducer_row(const struct group *group, uint64_t position, void *header, double *since, uint16_t *ranks)
{
    if (position - group->head >= group->room)
        return 0;
    const struct row *row = row_at(group, position);
    if (row->arrived) {
        memcpy(header, &row->shape, HEADER);
        memcpy(ranks, row->order, row->arrived * sizeof *ranks);
        *since = row->since;
    }
    return row->arrived;
}
