// The action run_policy as a node of BehaviorTree.CPP, by BehaviorTree.ROS2: a plugin for its TreeExecutionServer, or for
// RegisterRosNode. Only `completed` is SUCCESS; a task that nothing says to be done ends by its time, which is FAILURE here.
#ifndef BT_PLUGIN_EXPORT
#define BT_PLUGIN_EXPORT  // without it the library does not show its registration
#endif
#include <behaviortree_ros2/bt_action_node.hpp>
#include <behaviortree_ros2/plugins.hpp>
#include <vla_accel_msgs/action/run_policy.hpp>

class RunPolicy : public BT::RosActionNode<vla_accel_msgs::action::RunPolicy>
{
public:
  using BT::RosActionNode<vla_accel_msgs::action::RunPolicy>::RosActionNode;

  static BT::PortsList providedPorts()
  {
    return providedBasicPorts({BT::InputPort<std::string>("prompt"),
                               BT::InputPort<double>("timeout_s", 0.0, ""),
                               BT::InputPort<std::string>("success_topic", "", ""),
                               BT::InputPort<std::string>("success_service", "", ""),
                               BT::InputPort<std::string>("success_question", "", ""),
                               BT::OutputPort<std::string>("termination_reason"),
                               BT::OutputPort<std::string>("message")});
  }

  bool setGoal(Goal& goal) override
  {
    return getInput("prompt", goal.prompt) && getInput("timeout_s", goal.timeout_s) &&
           getInput("success_topic", goal.success_topic) && getInput("success_service", goal.success_service) &&
           getInput("success_question", goal.success_question);
  }

  BT::NodeStatus onResultReceived(const WrappedResult& answer) override
  {
    report(answer.result->termination_reason, answer.result->message);
    const bool completed = answer.result->termination_reason == Action::Result::TERMINATION_COMPLETED;
    return completed ? BT::NodeStatus::SUCCESS : BT::NodeStatus::FAILURE;
  }

  // BehaviorTree.ROS2 keeps the result of an aborted or cancelled goal to itself.
  BT::NodeStatus onFailure(BT::ActionNodeErrorCode error) override
  {
    report(BT::toStr(error), "no result; if the goal had begun, the trajectory node's log says why it ended");
    return BT::NodeStatus::FAILURE;
  }

private:
  using Action = vla_accel_msgs::action::RunPolicy;

  void report(const std::string& reason, const std::string& message)
  {
    setOutput("termination_reason", reason);
    setOutput("message", message);
  }
};

CreateRosNodePlugin(RunPolicy, "RunPolicy");
