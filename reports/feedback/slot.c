#include "reports/feedback/slot.h"

#include <math.h>

void slot_init(Slot *slot)
{
    *slot = (Slot){.means = g_array_new(FALSE, FALSE, sizeof(double)), .least = INFINITY};
}

void slot_clear(Slot *slot)
{
    g_clear_pointer(&slot->means, g_array_unref);
}

void slot_add(Slot *slot, double seconds)
{
    slot->sum += seconds;
    slot->num++;
    slot->calls++;
    slot->least = MIN(slot->least, seconds);
}

void slot_end_step(Slot *slot)
{
    const double mean = slot->num == 0 ? NAN : slot->sum / slot->num;

    g_array_append_val(slot->means, mean);
    slot->sum = slot->num = 0;
}

static gint by_length(gconstpointer a, gconstpointer b, gpointer lengths)
{
    const double x = g_array_index((GArray *)lengths, double, *(const guint *)a);
    const double y = g_array_index((GArray *)lengths, double, *(const guint *)b);

    return x < y ? -1 : x > y;
}

GArray *slot_middle_steps(const GArray *lengths)
{
    const guint drop = lengths->len < 3 ? 0 : MAX(1, lengths->len / 4);
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < lengths->len; i++)
        g_array_append_val(steps, i);
    g_array_sort_with_data(steps, by_length, (gpointer)lengths);
    g_array_remove_range(steps, lengths->len - drop, drop);
    g_array_remove_range(steps, 0, drop);
    return steps;
}

double slot_seconds(const Slot *slot, const GArray *steps)
{
    double sum = 0;
    guint num = 0;

    for (guint i = 0; i < steps->len; i++) {
        const double mean = g_array_index(slot->means, double, g_array_index(steps, guint, i));

        sum += isnan(mean) ? 0 : mean;
        num += isnan(mean) ? 0 : 1;
    }
    return num == 0 ? 0 : sum / num;
}
