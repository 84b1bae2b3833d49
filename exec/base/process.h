/* This process as the system sees it: memory, cores, clock, and the signals that ask it to stop. */
#pragma once

#include <glib.h>

/* The peak of resident memory since the start (VmHWM). */
guint64 process_peak_rss_bytes(void);

/* Cores this process may run on. */
guint process_usable_cores(void);

/* Seconds of a clock that only goes forward; its zero is arbitrary, and the same on one host. */
double clock_s(void);

/* From now on SIGINT, SIGTERM and SIGUSR2 only set a flag: "finish the step, then stop".  A second
 * SIGINT does the default.  A signal that was ignored before (nohup, a script's background job)
 * stays ignored. */
void process_install_signals(void);

/* The same, but any number of SIGINT is only counted: for a process that ends others first. */
void process_count_signals(void);

gboolean process_stop_requested(void);
guint process_interrupts(void); /* SIGINT received so far */
