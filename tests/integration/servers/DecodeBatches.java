import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.Utils;

/**
 * What Kafka's consumer makes of batches: the calls of its CompletedFetch, with check.crcs, without a broker.
 *
 * Each line of standard input is one batch in base64. Each line of the answer is JSON: {"records": [[offset, timestamp,
 * timestamp type, key, value, [[name, value], ...]], ...]} with keys and values in base64 or null, or {"error": "..."}.
 * With the argument "names" each line is the bytes of a header name, and the answer is the name, in base64 of UTF-16.
 */
public class DecodeBatches {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.US_ASCII);
        boolean names = arguments.length > 0 && arguments[0].equals("names");
        for (String line; (line = in.readLine()) != null; ) {
            byte[] bytes = Base64.getDecoder().decode(line);
            out.println(names ? base64(Utils.utf8(ByteBuffer.wrap(bytes)).getBytes(StandardCharsets.UTF_16BE)) : decoded(bytes));
        }
        out.flush();
    }

    static String decoded(byte[] bytes) {
        StringBuilder found = new StringBuilder("{\"records\": [");
        int before = found.length();
        try {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                batch.ensureValid();
                try (CloseableIterator<Record> records = batch.streamingIterator(BufferSupplier.create())) {
                    while (records.hasNext()) {
                        Record record = records.next();
                        record.ensureValid();
                        found.append(found.length() == before ? "" : ", ").append(shown(record, batch));
                    }
                }
            }
        } catch (Throwable error) {
            return "{\"error\": " + quoted(error.toString()) + "}";
        }
        return found.append("]}").toString();
    }

    static String shown(Record record, MutableRecordBatch batch) {
        StringBuilder text = new StringBuilder("[").append(record.offset()).append(", ").append(record.timestamp());
        text.append(", ").append(Math.max(batch.timestampType().id, 0));
        text.append(", ").append(quoted(record.key())).append(", ").append(quoted(record.value())).append(", [");
        String between = "";
        for (Header header : record.headers()) {
            text.append(between).append("[").append(quoted(header.key())).append(", ");
            text.append(header.value() == null ? "null" : "\"" + base64(header.value()) + "\"").append("]");
            between = ", ";
        }
        return text.append("]]").toString();
    }

    static String quoted(ByteBuffer buffer) {
        return buffer == null ? "null" : "\"" + base64(Utils.toArray(buffer)) + "\"";
    }

    static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : text.toCharArray()) {
            boolean plain = letter >= ' ' && letter < 127 && letter != '"' && letter != '\\';
            out.append(plain ? String.valueOf(letter) : String.format("\\u%04x", (int) letter));
        }
        return out.append('"').toString();
    }

    static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
