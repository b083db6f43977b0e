#define _GNU_SOURCE
#include "poller.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BELL UINT32_MAX

void poller_close(struct poller *poller)
{
    if (poller->handle >= 0)
        close(poller->handle);
    if (poller->bell >= 0)
        close(poller->bell);
}

bool poller_open(struct poller *poller)
{
    struct epoll_event bell = {.events = EPOLLIN, .data.u32 = BELL};
    poller->handle = epoll_create1(EPOLL_CLOEXEC);
    poller->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return poller->handle >= 0 && poller->bell >= 0 &&
           epoll_ctl(poller->handle, EPOLL_CTL_ADD, poller->bell, &bell) == 0;
}

bool poller_add(struct poller *poller, uint32_t index, int handle)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = index};
    return epoll_ctl(poller->handle, EPOLL_CTL_ADD, handle, &event) == 0;
}

void poller_remove(struct poller *poller, int handle)
{
    struct epoll_event event = {0};
    epoll_ctl(poller->handle, EPOLL_CTL_DEL, handle, &event); /* This fails if the socket is already closed. */
}

void poller_renew(struct poller *poller, uint32_t index, int handle)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = index};
    epoll_ctl(poller->handle, EPOLL_CTL_MOD, handle, &event);
}

void poller_wake(struct poller *poller)
{
    uint64_t one = 1;
    while (write(poller->bell, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

int poller_wait(struct poller *poller, int milliseconds, struct ready ready[MAX_READY], bool *woken)
{
    struct epoll_event events[MAX_READY];
    int found = epoll_wait(poller->handle, events, MAX_READY, milliseconds), filled = 0;
    for (int i = 0; i < found; i++) {
        uint32_t all = events[i].events;
        if (events[i].data.u32 == BELL) {
            uint64_t times;
            *woken = read(poller->bell, &times, sizeof times) > 0 || *woken;
            continue;
        }
        bool over = all & (EPOLLERR | EPOLLHUP);
        ready[filled++] = (struct ready){events[i].data.u32, over || all & EPOLLIN, over || all & EPOLLOUT};
    }
    return filled;
}
