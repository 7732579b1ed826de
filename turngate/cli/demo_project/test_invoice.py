import unittest

from invoice import total_cents


class TotalTest(unittest.TestCase):
    def test_without_discount(self) -> None:
        self.assertEqual(total_cents([(2, 1250), (1, 499)]), 2999)

    def test_discount_that_comes_out_even(self) -> None:
        self.assertEqual(total_cents([(4, 2500)], discount_percent=10), 9000)

    def test_discount_is_rounded_to_the_nearest_cent(self) -> None:
        # 15 % of 19.99 is 2.9985: the discount is 3.00, and the customer pays 16.99.
        self.assertEqual(total_cents([(1, 1999)], discount_percent=15), 1699)


if __name__ == "__main__":
    unittest.main()
