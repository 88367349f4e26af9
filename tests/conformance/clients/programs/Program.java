// The program of every client, for openapi-generator's `java`: grade a batch, follow it, drive a trajectory.
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.openapitools.client.ApiClient;
import org.openapitools.client.api.BatchesApi;
import org.openapitools.client.api.RewardsApi;
import org.openapitools.client.api.TasksApi;
import org.openapitools.client.api.TrajectoriesApi;
import org.openapitools.client.model.*;

public class Program {
    public static void main(String[] arguments) throws Exception {
        ApiClient client = new ApiClient();
        client.updateBaseUri(arguments[0]);
        ObjectMapper mapper = client.getObjectMapper();
        List<Map<String, Object>> samples = mapper.readValue(Path.of(arguments[1]).toFile(), new TypeReference<>() {});
        Map<String, Object> report = grade(client, mapper, samples);
        report.put("trajectory", drive(new TrajectoriesApi(client)));
        System.out.println(mapper.writeValueAsString(report));
    }

    static Map<String, Object> grade(ApiClient client, ObjectMapper mapper, List<Map<String, Object>> samples)
            throws Exception {
        TasksApi tasks = new TasksApi(client);
        BatchesApi batches = new BatchesApi(client);
        RewardsApi rewards = new RewardsApi(client);
        int size = samples.size();
        StageTemplate stage = new StageTemplate().name("tests").kind(ActionKind.CODE_ASSERTS);
        tasks.putTask("java", new Task().addStagesItem(stage).batchSize(size), null);
        String batch = tasks.openBatch("java", null, new BatchOpening().size(size)).getId();
        List<String> lines = new ArrayList<>();
        for (Map<String, Object> sample : samples) {
            RewardRequest request = new RewardRequest().requestId((String) sample.remove("id")).params(sample);
            if (lines.isEmpty()) rewards.postReward(request, null, batch, null);
            lines.add(mapper.writeValueAsString(request));
        }
        BulkReceipt receipt = rewards.postRewards(String.join("\n", lines), batch, null);
        if (receipt.getAccepted() + receipt.getRepeated() != size) throw new IllegalStateException(receipt.toString());
        Map<String, Boolean> passed = new HashMap<>();
        for (String line : follow(client, batch)) {
            ResultLine answer = mapper.readValue(line, ResultLine.class);
            passed.put(answer.getRequestId(), answer.getPassed());
        }
        BatchView view = batches.getBatch(batch);
        return new HashMap<>(Map.of("passed", passed, "state", view.getState(), "answered", view.getAnswered()));
    }

    // The generated method takes every text for JSON; the JDK's client reads line by line, as they come.
    static Iterable<String> follow(ApiClient client, String batch) throws Exception {
        URI results = URI.create(client.getBaseUri() + "/v1/batches/" + batch + "/results?follow=true");
        HttpRequest request = HttpRequest.newBuilder(results).build();
        return client.getHttpClient().send(request, HttpResponse.BodyHandlers.ofLines()).body()::iterator;
    }

    static Map<String, Object> drive(TrajectoriesApi api) throws Exception {
        EnvironmentSpec environment = new EnvironmentSpec().memoryMb(64);
        String id = api.postTrajectory(new TrajectoryRequest().environment(environment), null).getId();
        EnvWriteAction write = new EnvWriteAction()
                .kind(EnvWriteAction.KindEnum.ENV_WRITE)
                .params(new EnvWrite().path("hello.txt").content("hello"));
        EnvBashAction bash = new EnvBashAction()
                .kind(EnvBashAction.KindEnum.ENV_BASH)
                .params(new EnvBash().line("cat hello.txt"));
        Answer written = api.postTrajectoryAction(id, new TrajectoryAction(write), 60.0);
        Answer read = api.postTrajectoryAction(id, new TrajectoryAction(bash), 60.0);
        TrajectoryView closed = api.deleteTrajectory(id);
        Object output = ((Map<?, ?>) read.getOutput()).get("output");
        return Map.of("written", written.getPassed(), "output", output, "state", closed.getState());
    }
}
