package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class FenceTest {
    @Test
    void isTheTextOfTheOtherSdks() {
        assertEquals("0000000000004194310.00000000000000000017", new Fence(4_194_310, 17).toString());
        assertEquals("9223372036854775807.18446744073709551615", new Fence(Long.MAX_VALUE, -1).toString());
        assertEquals("0000000000000000000.00000000000000000000", Fence.NONE.toString());
    }

    @Test
    void textsSortAsFencesDo() {
        List<Fence> sorted = List.of(Fence.NONE, new Fence(0, 1), new Fence(7, 1), new Fence(7, 10), new Fence(7, Long.MAX_VALUE), new Fence(7, -1),
                new Fence(8, 0), new Fence(70, 0), new Fence(Long.MAX_VALUE, 0));
        for (int i = 0; i < sorted.size(); i++) {
            for (int j = 0; j < sorted.size(); j++) {
                Fence a = sorted.get(i);
                Fence b = sorted.get(j);
                assertEquals(Integer.signum(i - j), Integer.signum(a.compareTo(b)), a + " and " + b);
                assertEquals(Integer.signum(i - j), Integer.signum(a.toString().compareTo(b.toString())), a + " and " + b);
                assertEquals(i < j, a.isBefore(b));
            }
            assertEquals(sorted.get(i), Fence.parse(sorted.get(i).toString()));
        }
    }

    @Test
    void otherTextsAreRefused() {
        for (String text : List.of("", "1.2", "0000000000004194310.0000000000000000017", "0000000000004194310 00000000000000000017",
                "9999999999999999999.00000000000000000017", "0000000000004194310.99999999999999999999", "+000000000004194310.00000000000000000017")) {
            assertThrows(IllegalArgumentException.class, () -> Fence.parse(text), text);
        }
        assertFalse(new Fence(1, 1).isBefore(new Fence(1, 1)));
        assertTrue(new Fence(1, 1).isBefore(new Fence(1, 2)));
    }
}
