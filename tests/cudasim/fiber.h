/* Stack switching, for grid.c alone: a few instructions on x86-64, ucontext elsewhere or with
 * -DCS_UCONTEXT. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(CS_UCONTEXT)

/* Saves the callee's registers and the stack pointer in *@save, goes on at stack pointer @to. */
void cs_fiber_switch(void **save, void *to);
__asm__(".text\n.globl cs_fiber_switch\n.type cs_fiber_switch,@function\n"
        "cs_fiber_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cs_fiber_switch,.-cs_fiber_switch\n");

/* The stack pointer to switch to for @entry, which never returns, on a stack of its own. */
static inline void *cs_fiber_new(void *base, size_t bytes, void (*entry)(void))
{
    void **stack = (void **)(((uintptr_t)base + bytes) & ~(uintptr_t)15);

    *--stack = NULL;          /* where entry would return to */
    *--stack = (void *)entry; /* taken by ret */
    for (int i = 0; i < 6; i++)
        *--stack = NULL;
    return stack;
}

#else
#include <ucontext.h>

/* The "stack pointer" is that of a context kept on the stack. */
static inline void *cs_fiber_new(void *base, size_t bytes, void (*entry)(void))
{
    uintptr_t top = ((uintptr_t)base + bytes - sizeof(ucontext_t)) & ~(uintptr_t)63;
    ucontext_t *context = (ucontext_t *)top;

    getcontext(context);
    context->uc_stack.ss_sp = base;
    context->uc_stack.ss_size = top - (uintptr_t)base;
    context->uc_link = NULL;
    makecontext(context, entry, 0);
    return context;
}
static inline void cs_fiber_switch(void **save, void *to)
{
    ucontext_t here;

    *save = &here;
    swapcontext(&here, (ucontext_t *)to);
}
#endif
