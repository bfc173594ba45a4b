/* A plugin for QEMU 7.2 (user mode) that counts the instructions a guest executes between markers.

       cc -O2 -shared -fPIC -o a57_count.so a57_count.c
       QEMU="-plugin ./a57_count.so" DIR/python program.py    # DIR made by scripts/a57

   A marker is close(0x7fabcdef): no file descriptor has that number, so the call fails and has no
   other effect. Each marker writes a line "a57_count N" to stderr, where N is the number of
   instructions that the calling guest thread has executed since its last marker, or since it
   started. Each guest thread is a thread of QEMU, so other threads do not count towards N.

   Debian does not package qemu-plugin.h, so the part we use (API version 1) is declared here. */

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

enum { CLOSE = 57, MARKER = 0x7fabcdef }; /* syscall number of close() on aarch64; its argument */
enum { NO_REGISTERS = 0 };                /* callbacks do not read guest registers */

typedef uint64_t plugin_id;
struct block; /* translation block: guest code up to the next jump */

typedef void (*on_translate)(plugin_id, struct block *);
typedef void (*on_execute)(unsigned cpu, void *data);
typedef void (*on_syscall)(plugin_id, unsigned cpu, int64_t number, uint64_t first, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, on_translate);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, on_execute, int flags, void *data);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id, on_syscall);

int qemu_plugin_version = 1;

static _Thread_local uint64_t executed;

static void count(unsigned cpu, void *instructions)
{
    (void)cpu;
    executed += (uintptr_t)instructions;
}

static void translate(plugin_id id, struct block *block)
{
    (void)id;
    size_t instructions = qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_cb(block, count, NO_REGISTERS, (void *)instructions);
}

static void mark(plugin_id id, unsigned cpu, int64_t number, uint64_t first, uint64_t b, uint64_t c,
                 uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)cpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != CLOSE || first != MARKER)
        return;
    fprintf(stderr, "a57_count %" PRIu64 "\n", executed);
    executed = 0;
}

int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_vcpu_syscall_cb(id, mark);
    return 0;
}
