// The program of every client, for openapi-generator's `go`: grade a batch, follow it, drive a trajectory.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	api "example.invalid/treadleapi"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// done drops the HTTP response of a call and stops at its error.
func done[T, R any](value T, _ R, err error) T {
	return must(value, err)
}

type trajectory struct {
	Written bool   `json:"written"`
	Output  any    `json:"output"`
	State   string `json:"state"`
}

type report struct {
	Passed     map[string]bool `json:"passed"`
	State      string          `json:"state"`
	Answered   int64           `json:"answered"`
	Trajectory trajectory      `json:"trajectory"`
}

func grade(ctx context.Context, client *api.APIClient, samples []map[string]any) report {
	size := int32(len(samples))
	task := api.NewTask([]api.StageTemplate{*api.NewStageTemplate(api.CODE_ASSERTS, "tests")})
	done(client.TasksAPI.PutTask(ctx, "go").Body(*task).Execute())
	opening := api.NewBatchOpening()
	opening.SetSize(size)
	batch := done(client.TasksAPI.OpenBatch(ctx, "go").BatchOpening(*opening).Execute()).Id
	var lines []string
	for position, sample := range samples {
		request := api.NewRewardRequest()
		request.SetRequestId(sample["id"].(string))
		delete(sample, "id")
		request.SetParams(sample)
		if position == 0 {
			done(client.RewardsAPI.PostReward(ctx).Batch(batch).RewardRequest(*request).Execute())
			continue
		}
		lines = append(lines, string(must(json.Marshal(request))))
	}
	receipt := done(client.RewardsAPI.PostRewards(ctx).Batch(batch).Body(strings.Join(lines, "\n")).Execute())
	if receipt.Accepted != int64(size-1) {
		panic(fmt.Sprint(*receipt))
	}
	result := report{Passed: map[string]bool{}}
	text := done(client.BatchesAPI.GetResults(ctx, batch).Follow(true).Execute())
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		var answer api.ResultLine
		if err := json.Unmarshal([]byte(line), &answer); err != nil {
			panic(err)
		}
		result.Passed[answer.GetRequestId()] = answer.GetPassed()
	}
	view := done(client.BatchesAPI.GetBatch(ctx, batch).Execute())
	result.State, result.Answered = view.State, view.Answered
	return result
}

func drive(ctx context.Context, client *api.APIClient) trajectory {
	environment := api.NewEnvironmentSpec()
	environment.SetMemoryMb(64)
	request := api.NewTrajectoryRequest()
	request.SetEnvironment(*environment)
	trajectories := client.TrajectoriesAPI
	id := done(trajectories.PostTrajectory(ctx).TrajectoryRequest(*request).Execute()).Id
	write := api.EnvWriteActionAsTrajectoryAction(api.NewEnvWriteAction("env.write", *api.NewEnvWrite("hello", "hello.txt")))
	bash := api.EnvBashActionAsTrajectoryAction(api.NewEnvBashAction("env.bash", *api.NewEnvBash("cat hello.txt")))
	act := func(action api.TrajectoryAction) *api.Answer {
		return done(trajectories.PostTrajectoryAction(ctx, id).Wait(60).TrajectoryAction(action).Execute())
	}
	written, read := act(write), act(bash)
	closed := done(trajectories.DeleteTrajectory(ctx, id).Execute())
	return trajectory{written.GetPassed(), read.Output.(map[string]any)["output"], closed.State}
}

func main() {
	configuration := api.NewConfiguration()
	configuration.Servers = api.ServerConfigurations{{URL: os.Args[1]}}
	client := api.NewAPIClient(configuration)
	var samples []map[string]any
	if err := json.Unmarshal(must(os.ReadFile(os.Args[2])), &samples); err != nil {
		panic(err)
	}
	ctx := context.Background()
	result := grade(ctx, client, samples)
	result.Trajectory = drive(ctx, client)
	fmt.Println(string(must(json.Marshal(result))))
}
