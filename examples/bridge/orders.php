<?php
// Adds up the orders of each customer, behind `router bridge`. It needs PHP with SQLite, and nothing else.
//
//   ORDERS=/tmp/orders.sqlite php -S 127.0.0.1:8080 orders.php & router bridge --to http://127.0.0.1:8080/orders
//
// GET / answers the sums. See docs/bridge.md.

declare(strict_types=1);

function answer(int $status, string $text = ''): void
{
    http_response_code($status);
    echo $text;
    exit;
}

$db = new SQLite3(getenv('ORDERS') ?: '/tmp/orders.sqlite');
$db->busyTimeout(5000);
$db->exec('CREATE TABLE IF NOT EXISTS fences (customer TEXT PRIMARY KEY, fence TEXT NOT NULL)');
$db->exec('CREATE TABLE IF NOT EXISTS orders (customer TEXT, id TEXT, cents INTEGER, PRIMARY KEY (customer, id))');

if ($_SERVER['REQUEST_METHOD'] === 'GET') {
    answer(200, json_encode($db->querySingle('SELECT count(DISTINCT customer) AS customers, count(*) AS orders, coalesce(sum(cents), 0) AS cents FROM orders', true)));
}

$order = json_decode(file_get_contents('php://input'), true);
$cents = is_array($order) ? ($order['cents'] ?? 0) : 0;
if (!is_int($cents) || $cents <= 0) {
    answer(422, 'no order of some cents'); // trying again would not help: to the dead letter topic
}
$customer = rawurldecode($_SERVER['HTTP_CE_PARTITIONKEY']);

// The fence first, in the transaction of the write: it refuses a handler that has lost the customer.
$db->exec('BEGIN IMMEDIATE');
$claim = $db->prepare('INSERT INTO fences VALUES (:customer, :fence) ON CONFLICT (customer) DO UPDATE SET fence = excluded.fence WHERE fence <= excluded.fence');
$claim->bindValue(':customer', $customer);
$claim->bindValue(':fence', $_SERVER['HTTP_CE_FENCE']);
$claim->execute();
if ($db->changes() === 0) {
    $db->exec('ROLLBACK');
    answer(409, "the customer is somebody else's by now");
}
// The id makes a repetition harmless.
$book = $db->prepare('INSERT OR IGNORE INTO orders VALUES (:customer, :id, :cents)');
$book->bindValue(':customer', $customer);
$book->bindValue(':id', $_SERVER['HTTP_CE_ID']);
$book->bindValue(':cents', $cents);
$book->execute();
$db->exec('COMMIT');
answer(204);
